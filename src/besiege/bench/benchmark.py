"""A benchmark: many models under many threats, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, field_validator

from besiege.bench.spec import Model, Seed, Trained, Value
from besiege.core.text import MOST
from besiege.data.catalogue import CATALOGUE

DEFAULT = "default"
"""The key of the substitute for all models that a cell does not name."""
Count = Field(default=None, ge=1, le=MOST)


class Compare(Value):
    """Pairs of models, declared before the run: p-values are corrected for these (Holm)."""

    pairs: tuple[tuple[str, str], ...] = ()


class Keep(Value):
    """What is kept besides verdicts: all adversarial images, those that pages show, or none."""

    images: Literal["all", "shown", "none"] = "all"


class Cell(Value):
    """One threat and its attacks; each model under it is an evaluation.

    Attributes
    ----------
    threat : str
        The threat. With a search its budget is the one that tables show.
    attacks, suite
        Attacks that each run on every sample, or a suite.
    budget : {"search"}, optional
        Search for the smallest perturbation, which gives accuracy at every budget.
    budgets : tuple of str
        Several budgets in the threat's norm, one evaluation each.
    substitute : mapping
        By model, or for all others under ``default``, the models that attacks are crafted on.
    models : tuple of str, optional
        Names of models; by default all that the attacks fit.
    seeds, count, queries, goal, access, examine
        As in `besiege.evaluate`; seed and count are by default those of the benchmark.
    clever : str, optional
        CLEVER scores of the images besides, such as ``clever(batches=100)``.
    certify : str, optional
        Method that also proves which images no perturbation within the budget can break, such as
        ``crown``.
    beside : tuple of str
        Models of other cells whose calibration images are left out here, too, so that this cell
        has the same images as theirs.
    crop : {"model"}, optional
        Each model gets the images cropped to its own side. Images keep their ids, so that models of
        all sizes are compared on the same ones. By default the benchmark's data say the size.
    across : {"grey", "white"}, optional
        The images that are crafted on each model are judged on all others of the cell, too. Models
        of another size get their middle, or a border in this colour around them.
    """

    name: str = Field(min_length=1, max_length=80)
    threat: str
    attacks: tuple[str, ...] | None = None
    suite: str | None = None
    budget: Literal["search"] | None = None
    budgets: tuple[str, ...] = ()
    substitute: Mapping[str, tuple[str, ...]] = Field(default_factory=dict)
    models: tuple[str, ...] | None = None
    seeds: tuple[int, ...] = ()
    count: int | None = Count
    queries: int | None = Count
    goal: str | None = None
    access: Literal["gradient", "score", "decision"] | None = None
    examine: Literal["full", "short", "none"] = "short"
    clever: str | None = None
    certify: str | None = None
    beside: tuple[str, ...] = ()
    crop: Literal["model"] | None = None
    across: Literal["grey", "white"] | None = None

    @field_validator("attacks", "models", "beside", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given

    @field_validator("substitute", mode="before")
    @classmethod
    def _by_model(cls, given: object) -> object:
        """One substitute, or several that form an ensemble, may stand without a table."""
        given = given if isinstance(given, Mapping) else {DEFAULT: given}
        return {k: [v] if isinstance(v, str) else v for k, v in given.items()}

    @field_validator("budgets", mode="before")
    @classmethod
    def _texts(cls, given: object) -> object:
        """Budgets may be numbers: 0.5 is the text "0.5"."""
        if not isinstance(given, (list, tuple)):
            return given
        return [
            str(one) if isinstance(one, (int, float)) and not isinstance(one, bool) else one
            for one in given
        ]

    @property
    def searches(self) -> bool:
        """Whether attacks search for the smallest perturbation."""
        return self.budget is not None

    def substitutes(self, model: str) -> tuple[str, ...]:
        """The models that attacks on a model are crafted on; none where it is attacked itself."""
        return self.substitute.get(model, self.substitute.get(DEFAULT, ()))

    def threats(self) -> list[tuple[str | None, str]]:
        """The budgets, and the text of the threat within each; a search has neither."""
        first, *others = self.threat.split()
        norm, _, written = first.partition(":")
        if self.searches:
            return [(None, " ".join([norm, *others]))]
        return [(one, " ".join([f"{norm}:{one}", *others])) for one in self.budgets or (written,)]


class Shown(Value):
    """Images of one model that are shown to others, or again to itself through a layer.

    They are judged once the attacks are over, as transfer or as a replay, and never counted as
    robustness (`besiege.bench.replaying`).

    Attributes
    ----------
    source : str
        The model that the images were made on.
    on : tuple of str
        The models that judge them; by default the source itself.
    through : tuple of str
        Layers that the images pass first, each by itself, such as ``jpeg(quality=90)``.
    cells : str
        A pattern of the names of cells; in each, the source and the judging model are needed.
    """

    source: str
    on: tuple[str, ...] = ()
    through: tuple[str, ...] = ()
    cells: str = "*"

    @field_validator("on", "through", mode="before")
    @classmethod
    def _listed(cls, given: object) -> object:
        return [given] if isinstance(given, str) else given


class Benchmark(Value):
    """Models, data and cells: all that a benchmark measures, declared before it runs.

    Attributes
    ----------
    name : str
        The name of the benchmark, and of its default folder.
    data, split, count, seed, shard
        The samples, as in `besiege.evaluate`.
    models : mapping
        Short names of models, and their texts or trainings.
    tags : mapping
        For every tag a value for some models; nothing that is measured depends on them.
    cells : tuple of Cell
        Threats and attacks.
    absent : mapping
        Models that belong to the benchmark and cannot be evaluated yet, and their texts or the
        reason: reports show them as absent, so that no model is left out silently.
    replays : tuple of Shown
        Images of some models that others are shown.
    """

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=80)
    data: str
    count: int | None = Count
    seed: int = Seed
    split: str = "test"
    shard: int | None = Count
    models: Mapping[str, Model]
    tags: Mapping[str, Mapping[str, str]] = Field(default_factory=dict)
    cells: tuple[Cell, ...]
    compare: Compare = Compare()
    store: Keep = Keep()
    absent: Mapping[str, str] = Field(default_factory=dict)
    replays: tuple[Shown, ...] = ()

    @property
    def trained(self) -> dict[str, Trained]:
        """The models that are trained, by their names."""
        return {name: one for name, one in self.models.items() if isinstance(one, Trained)}

    def cell(self, name: str) -> Cell:
        """The cell of a name."""
        return next(one for one in self.cells if one.name == name)

    @property
    def available(self) -> int | None:
        """How many images its data have, where that is known without reading them."""
        name = self.data.partition("(")[0].strip()
        return CATALOGUE[name].images.get(self.split) if name in CATALOGUE else None

    def seeds(self, cell: Cell) -> tuple[int, ...]:
        """The seeds of a cell."""
        return cell.seeds or (self.seed,)

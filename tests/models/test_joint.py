from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from besiege.core.dice import Dice
from besiege.core.errors import InputError, UnknownNameError, VictimError
from besiege.models import ARCHITECTURES, Classifier, load, twin
from besiege.models.joint import Joint, joint
from besiege.testing import conform_victim

IMAGES = torch.rand(8, 1, 8, 8, generator=torch.Generator().manual_seed(0))
SMALL = "digits_cnn"


def test_it_answers_the_log_of_the_mean_probability() -> None:
    torch.manual_seed(0)
    net = joint(of=SMALL, members=3).eval()
    each = net.each(IMAGES)
    assert each.shape == (3, 8, 10)
    assert torch.equal(each[1], net.members[1](IMAGES))
    assert not torch.allclose(each[0], each[1])
    shares = each.softmax(2).mean(0)
    assert torch.allclose(net(IMAGES).exp(), shares, atol=1e-6)
    assert torch.allclose(net(IMAGES).exp().sum(1), torch.ones(8), atol=1e-5)


def test_it_stays_finite_where_members_are_certain() -> None:
    net = joint(of=SMALL, members=2).eval()
    with torch.no_grad():
        for member in net.members:
            member[-1].weight.mul_(1e6)  # type: ignore[index]  # a Sequential
    assert bool(net(IMAGES).isfinite().all())


def test_members_are_written_with_arguments() -> None:
    net = joint(of="preact_resnet18(width=4, in_channels=1)", members=2, classes=7)
    assert len(net.members) == 2 and net.eval()(IMAGES).shape == (8, 7)
    assert net.members[0].conv1.out_channels == 4  # type: ignore[union-attr]
    assert joint(of=f"{SMALL}(classes=4)", members=1, classes=7)(IMAGES).shape == (8, 4)
    # A size is for members that have one.
    assert joint(of="resnet20", members=1, size=8, in_channels=1).eval()(IMAGES).shape == (8, 10)
    assert joint(of="vgg16(width=2)", members=1, size=8, in_channels=1)(IMAGES).shape == (8, 10)


@pytest.mark.parametrize(
    ("arguments", "problem", "message"),
    [
        ({"of": "resnet21"}, UnknownNameError, "no architecture is called 'resnet21'.*resnet20"),
        ({"of": "resnet20(widht=3)"}, InputError, "'resnet20' takes no 'widht'"),
        ({"of": "resnet20(3)"}, InputError, "name=value"),
        ({"members": 0}, InputError, "one member or more"),
    ],
)
def test_what_is_no_joint_is_refused(
    arguments: dict[str, object], problem: type[Exception], message: str
) -> None:
    with pytest.raises(problem, match=message):
        ARCHITECTURES["joint"](**arguments)


def test_it_is_one_file_of_weights_with_a_text(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = joint(of=f"{SMALL}(classes=4)", members=2).eval()
    path = tmp_path / "net.safetensors"
    save_file(net.state_dict(), path)
    victim = load(f"joint(of='{SMALL}(classes=4)', members=2):{path}")
    assert isinstance(victim.module, Joint)
    assert torch.equal(victim(IMAGES), net(IMAGES))
    conform_victim(victim, IMAGES)


def test_a_classifier_answers_for_each_member_as_it_prepares_images() -> None:
    torch.manual_seed(0)
    net = joint(of=SMALL, members=2).eval()
    victim = Classifier(net, mean=0.5, std=0.25)
    assert torch.equal(victim.each(IMAGES), net.each((IMAGES - 0.5) / 0.25))
    with pytest.raises(InputError, match=r"has no members.*joint\(of='resnet20', members=3\)"):
        load("zoo:digits-natural").each(IMAGES)


def test_members_that_draw_have_dice_of_their_own() -> None:
    torch.manual_seed(0)
    net = joint(of="vgg16(width=2, noise=(0.2, 0.1))", members=2, in_channels=1, size=8).eval()
    net.members[1].load_state_dict(net.members[0].state_dict())
    victim, dice = Classifier(net), Dice.throw(0, torch.arange(8))
    once = victim.each(IMAGES, dice)
    assert torch.equal(once, victim.each(IMAGES, dice)) and not torch.equal(once[0], once[1])
    with pytest.raises(VictimError, match="no dice"):
        victim.each(IMAGES)


def test_a_joint_has_a_twin() -> None:
    torch.manual_seed(0)
    victim = Classifier(joint(of="resnet20", members=2, in_channels=1).eval())
    assert twin(victim, IMAGES) is not None

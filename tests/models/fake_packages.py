"""Small packages with the interface of torchvision, timm, transformers and robustbench.

They are written as files and imported by Python's own machinery. The transforms are torch's.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NAMES = ("torchvision", "timm", "transformers", "robustbench")

_TRANSFORMS = """
import torch
from torch.nn import functional as F

def resized(x, size, mode, antialias=True):
    if isinstance(size, int):
        height, width = x.shape[-2:]
        short = min(height, width)
        size = (int(size * height / short), int(size * width / short))
    return F.interpolate(x, tuple(size), mode=mode, antialias=antialias)

class Resize:
    def __init__(self, size, interpolation="bilinear"):
        self.size, self.interpolation = size, interpolation
    def __call__(self, x):
        return resized(x, self.size, self.interpolation)

class CenterCrop:
    def __init__(self, size):
        self.size = (size, size)
    def __call__(self, x):
        top, left = (int(round((full - part) / 2.0)) for full, part in zip(x.shape[-2:], self.size))
        return x[..., top : top + self.size[0], left : left + self.size[1]]

class ToTensor:
    def __call__(self, x):
        raise TypeError("pic should be PIL Image or ndarray")

class MaybeToTensor:
    def __call__(self, x):
        return x

class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = torch.tensor(mean), torch.tensor(std)
    def __call__(self, x):
        return (x - self.mean.reshape(-1, 1, 1)) / self.std.reshape(-1, 1, 1)

class Flip:
    def __call__(self, x):
        return x.flip(-1)

class Compose:
    def __init__(self, transforms):
        self.transforms = transforms
    def __call__(self, x):
        for one in self.transforms:
            x = one(x)
        return x
"""

_NET = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self, num_classes=10, size=16):
        super().__init__()
        self.size = size
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(4 * (size // 2) ** 2, num_classes)
    def forward(self, x):
        assert x.shape[-2:] == (self.size, self.size), f"this network takes {self.size} pixels"
        return self.fc(torch.relu(self.norm(self.conv(x))).flatten(1))
"""

_FILES: dict[str, dict[str, str]] = {
    "torchvision": {
        "__init__.py": '__version__ = "0.28.0+cpu"\n',
        "transforms.py": _TRANSFORMS,
        "models/net.py": _NET,
        "models/__init__.py": """
import os
from enum import Enum
from functools import partial
from types import SimpleNamespace
import torch
from torchvision.models.net import Net
from torchvision.transforms import CenterCrop, Normalize, resized

class ImageClassification:
    def __init__(self, resize_size, interpolation="bilinear", told=None):
        self.resize_size, self.crop_size = [told or resize_size], [16]
        self.mean, self.std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
        self.interpolation, self.really = interpolation, resize_size
    def __call__(self, x):
        x = resized(x, self.really, self.interpolation)
        return Normalize(self.mean, self.std)(CenterCrop(16)(x))

class SemanticSegmentation:
    pass

def weights(file, transforms):
    where = "file://" + os.environ.get("FAKE_WEIGHTS", "/nowhere") + "/" + file
    return SimpleNamespace(url=where, transforms=transforms)

class Weights(Enum):
    @property
    def url(self):
        return self.value.url
    @property
    def transforms(self):
        return self.value.transforms

class Small_Weights(Weights):
    IMAGENET1K_V1 = weights("small_v1.pth", partial(ImageClassification, 20))
    IMAGENET1K_V2 = weights("small_v2.pth", partial(ImageClassification, 18, "bicubic"))
    DEFAULT = IMAGENET1K_V2

class Liar_Weights(Weights):
    IMAGENET1K_V1 = weights("liar.pth", partial(ImageClassification, 20, told=24))
    DEFAULT = IMAGENET1K_V1

class Parts_Weights(Weights):
    COCO = weights("parts.pth", SemanticSegmentation)
    DEFAULT = COCO

KNOWN = {"small_net": Small_Weights, "liar_net": Liar_Weights, "parts_net": Parts_Weights}

def list_models(module=None):
    return sorted(KNOWN)

def get_model_weights(name):
    return KNOWN[name]

def small_net(*, weights=None, progress=True, num_classes=10):
    made = Net(num_classes)
    if weights is not None:
        url = Small_Weights[weights].url
        made.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
    return made

def get_model_builder(name):
    return small_net

def get_model(name, **given):
    print("a line that a package prints")
    return get_model_builder(name)(**given)
""",
    },
    "timm": {
        "__init__.py": """
import fnmatch
import os
import warnings
import torch
from timm import data
from timm.net import Net
__version__ = "1.0.9"
warnings.warn("importing this is deprecated", FutureWarning)
KNOWN = {"tiny_vit": ["tiny_vit.a1_in1k", "tiny_vit.b2_in1k"], "odd_net": [], "old_net": []}

def is_model(name):
    return name.partition(".")[0] in KNOWN

def list_models(pattern="", pretrained=False):
    names = [tag for tags in KNOWN.values() for tag in tags] if pretrained else list(KNOWN)
    return fnmatch.filter(names, pattern) if pattern else names

def create_model(model_name, pretrained=False, num_classes=10):
    made = Net(num_classes)
    made.pretrained_cfg = {"architecture": model_name}
    if pretrained and model_name == "old_net":
        url = "file://" + os.environ["FAKE_WEIGHTS"] + "/old.pth"
        made.load_state_dict(torch.hub.load_state_dict_from_url(url, progress=False))
    elif pretrained:
        raise ConnectionError("no route to the hub")
    return made
""",
        "net.py": _NET,
        "transforms.py": _TRANSFORMS,
        "data.py": """
from timm.transforms import CenterCrop, Compose, Flip, MaybeToTensor, Normalize, Resize

def resolve_model_data_config(model):
    return {"odd": model.pretrained_cfg["architecture"].startswith("odd")}

def create_transform(odd):
    steps = [Resize(18, "bicubic"), CenterCrop(16), MaybeToTensor()]
    steps.append(Normalize([0.5] * 3, [0.25] * 3))
    return Compose([*steps[:2], Flip(), *steps[2:]] if odd else steps)
""",
    },
    "transformers": {
        "__init__.py": '''
import json
import os
from collections import OrderedDict
from types import SimpleNamespace
import torch
from transformers.net import Net
from transformers.transforms import CenterCrop, Normalize, resized
__version__ = "5.1.0"

def folder(repo, local_files_only=False, revision="main"):
    if not os.path.isdir(repo):
        raise OSError(f"cannot connect to load {repo}, and it is not among the cached files")
    return json.load(open(os.path.join(repo, "config.json")))

class AutoConfig:
    @classmethod
    def from_pretrained(cls, repo, **where):
        return SimpleNamespace(architectures=folder(repo, **where)["architectures"])

class Output(OrderedDict):
    """An output with names, as ModelOutput is."""
    def __getattr__(self, name):
        return self[name]

class Classifying(Net):
    def forward(self, x):
        return Output(logits=super().forward(x), hidden_states=x)

class AutoModelForImageClassification:
    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path, output_loading_info, **where):
        told = folder(pretrained_model_name_or_path, **where)
        made = Classifying(told["classes"])
        made.config = SimpleNamespace(_name_or_path=pretrained_model_name_or_path)
        made.name_or_path = made.conv.name_or_path = pretrained_model_name_or_path
        return made, {"missing_keys": set(told.get("missing", ()))}

class Processor:
    do_resize = do_center_crop = do_rescale = do_normalize = True
    size, crop_size = {"shortest_edge": 20}, {"height": 16, "width": 16}
    resample, rescale_factor = 2, 1 / 255
    image_mean, image_std = [0.5, 0.4, 0.3], [0.25, 0.25, 0.5]
    def __call__(self, images, return_tensors):
        made = []
        for image in images:
            x = resized(image[None].float(), 20, "bilinear").round()
            top, left = ((full - 16) // 2 for full in x.shape[-2:])
            x = x[..., top : top + 16, left : left + 16] / 255
            made.append(Normalize(self.image_mean, self.image_std)(x)[0])
        return {"pixel_values": torch.stack(made)}

class AutoImageProcessor:
    @classmethod
    def from_pretrained(cls, repo, **where):
        folder(repo, **where)
        return Processor()
''',
        "net.py": _NET,
        "transforms.py": _TRANSFORMS,
    },
    "robustbench": {
        "__init__.py": '__version__ = "1.1"\n',
        "net.py": _NET,
        "transforms.py": _TRANSFORMS,
        "model_zoo/enums.py": """
from enum import Enum

class BenchmarkDataset(Enum):
    cifar_10 = "cifar10"
    imagenet = "imagenet"

class ThreatModel(Enum):
    Linf = "Linf"
    L2 = "L2"
""",
        "model_zoo/__init__.py": """
from robustbench.model_zoo.enums import BenchmarkDataset, ThreatModel
from robustbench.net import Net
entry = {"model": Net, "gdrive_id": "1abc"}
model_dicts = {
    BenchmarkDataset.cifar_10: {ThreatModel.Linf: {"Wise2020Robust": entry}, ThreatModel.L2: {}},
    BenchmarkDataset.imagenet: {ThreatModel.Linf: {"Wise2020Robust": entry}},
}
""",
        "utils.py": """
from pathlib import Path
import torch
from robustbench.model_zoo import model_dicts

def load_model(model_name, model_dir="./models", dataset=None, threat_model=None):
    made = model_dicts[dataset][threat_model][model_name]["model"]()
    path = Path(model_dir) / dataset.value / threat_model.value / f"{model_name}.pt"
    made.load_state_dict(torch.load(path, weights_only=True))
    return made
""",
        "data.py": """
from robustbench.model_zoo.enums import BenchmarkDataset
from robustbench.transforms import CenterCrop, Compose, Resize, ToTensor

def get_preprocessing(dataset, threat_model, model_name, preprocessing):
    if dataset is BenchmarkDataset.imagenet:
        return Compose([Resize(20), CenterCrop(16), ToTensor()])
    return Compose([ToTensor()])
""",
    },
}


@contextmanager
def installed(folder: Path, *names: str, **changes: str) -> Iterator[Path]:
    """Packages that can be imported inside; a change replaces the first file of a package."""
    site = folder / "site-packages"
    for name in names:
        for file, content in _FILES[name].items():
            path = site / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        if name in changes:
            (site / name / "__init__.py").write_text(changes[name])
    before = {name: module for name, module in sys.modules.items() if _ours(name)}
    for name in before:
        del sys.modules[name]
    # A package that is installed but not asked for is absent, in any environment.
    sys.modules.update({name: None for name in NAMES if name not in names})  # type: ignore[misc]
    sys.path.insert(0, str(site))
    try:
        yield site
    finally:
        sys.path.remove(str(site))
        for name in [name for name in sys.modules if _ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


def _ours(module: str) -> bool:
    return module.partition(".")[0] in NAMES

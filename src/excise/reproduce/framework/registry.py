"""Which experiments there are: a table that is read without loading any of them."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from excise.errors import InputError

if TYPE_CHECKING:  # the list of experiments is shown without torch and numpy
    from excise.reproduce.framework.experiment import Experiment


@dataclass(frozen=True)
class Listed:
    """What the list says about an experiment, and where the experiment is."""

    name: str
    where: str
    """Its place in the paper."""
    title: str
    data: str
    module: str
    """That it is defined in, under ``excise.reproduce.studies``."""
    attribute: str = "EXPERIMENT"
    """What it is called there."""

    def __str__(self) -> str:
        return f"{self.name:<16}{self.where}: {self.title}"


TABLE = (
    Listed(
        name="celeba-speed",
        where="Figure 3, and its full form in appendix B",
        title="wall-clock of Markov blankets, CODEC against L-CODEC",
        data="the 40 attributes of all 202,599 CelebA images, each as target in turn",
        module="celeba_speed.experiment",
    ),
    Listed(
        name="bullseye",
        where="Table 1",
        title="Markov blankets in the 3-D bullseye data",
        data="draws of the 3-D bullseye distribution of Yang et al. (UAI 2020)",
        module="bullseye.experiment",
    ),
    Listed(
        name="spurious",
        where="Figure 4 (spurious feature regularisation)",
        title="regularising against outside factors",
        data="digits of MNIST that carry the attributes of CelebA's faces, a stand-in for the faces",
        module="spurious.experiment",
    ),
    Listed(
        name="sensitivity",
        where="Remark 2",
        title="ξ per pixel as an explanation",
        data="MNIST (a network of 784-128-64-10 units) and CIFAR-10 (a pretrained ResNet-20)",
        module="sensitivity.experiment",
    ),
    Listed(
        name="mnist-logistic",
        where="Figure 5, left",
        title="1,000 removals from logistic regression on MNIST",
        data="all of MNIST",
        module="mnist.experiment",
        attribute="LOGISTIC",
    ),
    Listed(
        name="mnist-2nn",
        where="Figure 5, left, for the network that the published scripts add",
        title="1,000 removals from a two-layer network on MNIST",
        data="all of MNIST",
        module="mnist.experiment",
        attribute="TWO_LAYERS",
    ),
    Listed(
        name="retrain",
        where="Figure 6, and appendix B on the effect of weight decay",
        title="removing most of a training set, against retraining",
        data="1,000 images of each class of MNIST, logistic regression",
        module="retrain.experiment",
    ),
    Listed(
        name="batchnorm",
        where="appendix B, Retraining Results on CIFAR",
        title="retraining with batch normalisation where one sample is left over",
        data="1,000 images of CIFAR-10 and 2,000 of its test images",
        module="batchnorm.experiment",
    ),
    Listed(
        name="cifar-models",
        where="Figure 5, right",
        title="removals from networks of many architectures",
        data="1,000 images of CIFAR-10; ResNet-20 and ResNet-56 with weights trained on all 50,000",
        module="cifar_models.experiment",
    ),
    Listed(
        name="ledgar",
        where="Table 2 and appendix B",
        title="removal of contract provisions from a language model",
        data="contract clauses that stand in for LEDGAR (a stand-in, not LEDGAR) and, as a test from outside, "
        "331 real provisions of LEDGAR; a pretrained MiniLM of 6 layers instead of DistilBERT",
        module="ledgar.experiment",
    ),
    Listed(
        name="faces",
        where="Figure 7, left, and section 7.3",
        title="one person's images removed one by one from a face recogniser",
        data="the ORL faces, a stand-in for VGG-Face; VGG-16 at full size with random weights for speed and memory",
        module="faces.experiment",
    ),
    Listed(
        name="reid",
        where="Figure 8, section 7.4 and appendix B",
        title="a person removed from a network that finds people again",
        data="ORL faces (40 people, 10 images each), a stand-in for Market-1501, MSMT17, PRID and GRID",
        module="reid.experiment",
    ),
    Listed(
        name="kfac",
        where="Appendix D",
        title="K-FAC against L-CODEC",
        data="MNIST, 60,000 images, two multilayer perceptrons",
        module="kfac.experiment",
    ),
    Listed(
        name="full-hessian",
        where="Lemma 1 (proof in appendix A), section 7.1",
        title="the block step against the full Hessian, and how their gap shrinks",
        data="MNIST, logistic regression on 500 to 50,000 images",
        module="full_hessian.experiment",
    ),
    Listed(
        name="iterations",
        where="Theorem 1",
        title="convergence by repeated application",
        data="4,000 images of MNIST, logistic regression",
        module="iterations.experiment",
    ),
)
"""In the paper's order."""

EXPERIMENTS = {listed.name: listed for listed in TABLE}
"""The experiments by name, in the paper's order."""


def find(name: str) -> Experiment[Any]:
    """The experiment of a name; for an unknown one, the error suggests the nearest.

    >>> find("bulseye")
    Traceback (most recent call last):
    excise.errors.InputError: there is no experiment 'bulseye'; did you mean 'bullseye'? See excise reproduce --list.
    """
    if name not in EXPERIMENTS:
        near = difflib.get_close_matches(name, EXPERIMENTS, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? See" if near else "for all of them, see"
        raise InputError(f"there is no experiment {name!r}; {hint} excise reproduce --list.")
    from excise.reproduce.framework.experiment import Experiment

    listed = EXPERIMENTS[name]
    found = getattr(import_module(f"excise.reproduce.studies.{listed.module}"), listed.attribute)
    if not isinstance(found, Experiment):
        raise TypeError(f"{listed.module}.{listed.attribute} is not an Experiment, but {type(found).__name__}.")
    return found

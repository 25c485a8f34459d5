"""The spurious experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.spurious.claims import judge
from excise.reproduce.studies.spurious.measure import Settings, measure
from excise.reproduce.studies.spurious.plot import draw

EXPERIMENT = Experiment(
    name="spurious",
    title="regularising against outside factors",
    where="Figure 4 (spurious feature regularisation)",
    data="digits of MNIST that carry the attributes of CelebA's faces, a stand-in for the faces",
    published=Settings(images="faces", train=162_770, validation=19_867, side=64),
    settings=Settings(),
    quick=Settings(train=256, validation=200, searched=5000, runs=2, strengths=(0.03,), epochs=1),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The faces' images are not part of this project's data, so each face is a digit of MNIST instead, a nine where it has no
beard and a four where it has one, and each of its 39 other attributes, by CelebA's own table, switches a change of the
picture on: a coloured mark on the rim for 28 of them, and for the rest thicker strokes, a slant, red or dimmer ink, a
blue or lighter background, stripes, a bar, a red cast, grain or blur. Label and factors are thus correlated as in
CelebA, and, unlike there, none of the factors is a part of what the label means. With CelebA's images in
`celeba/img_align_celeba`, `--paper-scale` does the same with the faces (random rows, as many as in the official split).
The paper gives no sizes; those named as its own below are the official split's, and 64 pixels are our choice.

The network has two convolutions and 32 features, a logistic head for the label and, behind a gradient reversal layer,
one for every factor it is regularised against; the losses are summed, as the paper's objective has it. L-FOCI reads the
whole table; the random subset is of the size of L-FOCI's. The paper states neither network nor strength: the strength
rises during training, as is usual, and three of them are measured, from one that hardly matters to one that ruins the
label; these and the heads' learning rate were chosen with other seeds. Bars are means over runs with one standard
deviation, green with the factor and red without, sorted by correlation with the label, and the overall accuracy stands
above them; a star marks what L-FOCI chose in most runs. The leftmost panel, which the paper does not show, is the same
network without regularisation: any claim that regularisation preserves accuracy has to be read against it.

The validation set of the paper's figure has the correlations of the training set, so a network that uses spurious
factors loses nothing there. What regularisation is for shows where factors say nothing about the label: *factors
shuffled* are new digits with the factors of other rows.
""",
    size=(12.0, 10.5),
)

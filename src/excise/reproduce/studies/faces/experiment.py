"""The faces experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from dataclasses import replace

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.faces.claims import judge
from excise.reproduce.studies.faces.measure import Settings, measure
from excise.reproduce.studies.faces.plot import draw

PUBLISHED = Settings()
HERE = replace(
    PUBLISHED,
    dataset="orl",
    people=40,
    images=8,
    removed_people=3,
    side=64,
    width=16,
    pretraining_epochs=25,
)

EXPERIMENT = Experiment(
    name="faces",
    title="one person's images removed one by one from a face recogniser",
    where="Figure 7, left, and section 7.3",
    data="the ORL faces, a stand-in for VGG-Face; VGG-16 at full size with random weights for speed and memory",
    published=PUBLISHED,
    settings=HERE,
    quick=replace(
        HERE,
        people=8,
        removed_people=1,
        side=32,
        width=4,
        pretraining_epochs=4,
        copies=32,
        full_side=32,
        full_width=8,
        full_classes=10,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The text of the paper has 5 epochs of fine-tuning and ε = 1e-5, its appendix 4 and 1e-4; the text's are taken.
VGG-Face's images and weights are not to be had here, so a VGG-11 of a quarter of the width is trained on eight images
of each of the 40 people of ORL, and fine-tuned as in the paper to record the gradients that its update needs; two more
images of each person are for testing. With the images in `vgg_face_dataset/` and `vgg_face.mat` (or its conversion
to PyTorch) in `weights/` of the data folder, `--paper-scale` runs the paper's own experiment. The published method is
`PaperStep` with the cheap selection, one slice per removal. *Ours* is the default step for every single image;
*ours, at once* is one request for all images of the person with `Drift.of_class()`, the rule for a whole person.
""",
    size=(11.0, 3.8),
)

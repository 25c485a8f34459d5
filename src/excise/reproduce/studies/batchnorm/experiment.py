"""The batchnorm experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from dataclasses import replace

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.batchnorm.claims import judge
from excise.reproduce.studies.batchnorm.measure import Settings, measure
from excise.reproduce.studies.batchnorm.plot import draw

HERE = Settings(
    network="small",
    removals=111,
    offsets=(-15, -7, -3, -1, 0, 1, 2, 8),
    epochs=10,
    learning_rate=0.1,
    weight_decay=0.01,
    copies=250,
    validated=2000,
)

EXPERIMENT = Experiment(
    name="batchnorm",
    title="retraining with batch normalisation where one sample is left over",
    where="appendix B, Retraining Results on CIFAR",
    data="1,000 images of CIFAR-10 and 2,000 of its test images",
    published=Settings(),
    settings=HERE,
    quick=replace(
        HERE,
        samples=130,
        removals=3,
        offsets=(-1, 0, 1, 2),
        runs=1,
        epochs=2,
        weight_decay=0.1,
        copies=64,
        validated=200,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
*Last batch kept* is the plain loop: whole batches, and whatever is left as a last one. *Ours* is `excise.fit`, in
which a lone sample joins the batch before; at all other counts it is the plain loop. *Even batches* are as many, of
sizes that differ by one at the most. All start from the same weights and shuffle by the same seed, and each count
removes the first so many samples. *Unlearned* goes over the same removals one sample at a time without retraining: ours
with the batch statistics re-estimated on what remains, the published step with its noise, and the same step without it.

The paper gives no settings for this figure; those beside ours are of its scripts for 1,000 images. They train the
ResNet-18 of Torch Hub, which is made for ImageNet: 32 × 32 pixels become a single one, so that batch normalisation has
one value per channel and refuses a batch of one image. The scripts' starting points (38 removals of 1,000 and 30 of
20,000, with batches of 64) are where the next removal leaves one sample over, and their loop has lines to skip such a
batch. Here a small network keeps 4 × 4 pixels, so that it can be trained on one image, and trains within two seconds;
its learning rate was chosen on other seeds than the one reported.
""",
    size=(14.0, 4.6),
)

"""The CIFAR experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from dataclasses import replace

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.cifar_models.claims import judge
from excise.reproduce.studies.cifar_models.measure import Settings, measure
from excise.reproduce.studies.cifar_models.plot import draw

HERE = Settings(
    width=0.25,
    densenet=(22, 8),
    samples=1000,
    removals=20,
    epochs=6,
    copies=100,
    curvature_samples=128,
    tuned=250,
    scored=150,
    every=2,
)

EXPERIMENT = Experiment(
    name="cifar-models",
    title="removals from networks of many architectures",
    where="Figure 5, right",
    data="1,000 images of CIFAR-10; ResNet-20 and ResNet-56 with weights trained on all 50,000",
    published=Settings(),
    settings=HERE,
    quick=replace(
        HERE,
        networks=("CNN", "VGG-11-BN", "ResNet-20"),
        width=0.0625,
        samples=66,
        removals=2,
        runs=1,
        epochs=2,
        copies=16,
        curvature_samples=4,
        tuned=66,
        scored=20,
        every=1,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The paper removes 1,000 of 50,000 samples; here it is the same share, 20 of 1,000, since a removal from the largest of
these networks takes a second or two on one core. The published step is ∇ℓ / (λ n), so that 20 steps of 1,000 are as far
as 1,000 of 50,000. Its noise grows with 1 / n² and would leave no model, so each removal gets the noise of the paper's
50,000 samples times √(1,000 / removals): over all removals it adds up to what it does in the paper. As in the published
code each removal starts from the weights that the last one left, noise included; none is taken back. *Ours* is
`Unlearner`, one request for each sample, without noise.

All networks but two are narrow ones of their kind (see the settings), trained here for a few epochs on the 1,000
images, without augmentation, with the paper's learning rates, batches and weight decay. ResNet-20 and ResNet-56 have
published weights, trained for long on all 50,000 images with a weight decay of 1e-4. The published curvature needs the
gradients of two epochs, so they are trained for two more on some of the images, at a learning rate of 0.001, with the
paper's weight decay, and count as trained on the 1,000: both methods' steps are then 50 times as long as the 50,000
images would ask for (`Step(size=...)` is for that), so that their curves are harsher than they need be. Accuracy is of
samples that are never removed, the same ones throughout a run; the gradient norm is that of the sample just removed,
over all weights, averaged between two measurements. What is supported is read from the mean of the runs.
""",
    size=(11.0, 7.0),
)

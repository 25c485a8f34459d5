"""The retrain experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.retrain.claims import judge
from excise.reproduce.studies.retrain.measure import Settings, measure
from excise.reproduce.studies.retrain.plot import draw

EXPERIMENT = Experiment(
    name="retrain",
    title="removing most of a training set, against retraining",
    where="Figure 6, and appendix B on the effect of weight decay",
    data="1,000 images of each class of MNIST, logistic regression",
    published=Settings(),
    settings=Settings(runs=2, copies=200, request=20, curvature_samples=2000),
    quick=Settings(per_class=20, removals=20, runs=1, epochs=2, copies=32, request=5, curvature_samples=100, every=10),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
The paper does not say which model this was; logistic regression is the natural choice, since "to convergence" has a
meaning for it (the published script has a two-layer network). The model is trained by SGD as in appendix B, then
brought to the exact minimum by Newton's method, and so are the retrained ones, at every measurement. The published
method removes one sample at a time and goes on from its own noisy weights; the published code also takes back removals
that cost more than 5 points of accuracy, which is not done here. A series ends where its accuracy has fallen by 30
points. *Paper* has the true number of samples in step and noise, *paper, n of its script* the 50,000 that the published
script passes although it trains on 10,000. *Ours* is our default step, without noise, in requests of several samples;
since three of ten slices can't carry so many, every slice may be updated that L-FOCI finds for any of them (`share=1`).
One unlearner serves all requests and is never prepared anew, so that the errors of hundreds of steps add up.

The residual gradient norm is that of the objective, weight decay included, over the samples that remain: 0 means
retrained (the retrained models' own, a matter of rounding, is drawn at the bottom). Distances are to the weights
retrained without the samples removed by then, as a share of the distance of the model that nothing was done to.
""",
    size=(11.0, 6.0),
)

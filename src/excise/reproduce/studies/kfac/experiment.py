"""The kfac experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.kfac.claims import judge
from excise.reproduce.studies.kfac.measure import Settings, measure
from excise.reproduce.studies.kfac.plot import draw

EXPERIMENT = Experiment(
    name="kfac",
    title="K-FAC against L-CODEC",
    where="Appendix D",
    data="MNIST, 60,000 images, two multilayer perceptrons",
    published=Settings(),
    settings=Settings(random=100),
    quick=Settings(samples=600, random=4, hardest=4, runs=1, epochs=2, epochs_memorising=3),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
**What is compared.** *K-FAC* is one step w + (K + λI)⁻¹ Σ∇ℓ / n of all weights, with K the Kronecker-factored
Gauss-Newton matrix of the retained samples and λ the weight decay; like the published script it has no selection, no
guard and no noise. Unlike it, all samples go in one request (the script removes one after the other and makes K anew
each time), biases belong to it, and its output factors come from 5,000 drawn pairs of sample and class. *Paper* is
`PaperStep`: joint L-FOCI over 1,000 perturbed copies and the rank-two curvature, sample after sample. Its noise is
left out, since the script's K-FAC has none either, and so is the script's rule to undo a removal that costs 5 points of
accuracy. *Ours* is `Step()`, per-layer L-FOCI with a kept K-FAC curvature of our own, *with drift* is
`Unlearner(task, "drift")`, one pass over the retained samples. All forget the same samples of the same model.

**Networks.** The appendix names neither network nor training. 784-20-10 is the network of the published script (there
without biases), trained for the script's 10 epochs with appendix B's SGD for MNIST (learning rate 0.1, batches of 256,
weight decay 0.01). In a trial with other seeds the 100 hardest samples had a mean loss of 7.11 when it was trained on
them and of 7.12 when it was not: there is next to nothing to forget, and no method can show on it that it forgets. So
784-128-64-10 is there too, with weight decay 0.0005, momentum and a falling learning rate. It was chosen because it
learns hard samples by heart (2.4 against 6.4 in the same trial), so it is a case in which forgetting can be seen, not
one of the paper's. Two kinds of samples are forgotten: random ones, and the hardest (of largest loss under the trained
model). The thresholds of the verdicts are ours, set after those trials and before any run of this command.

**Gap.** nKLc: the divergence from retrained models on the forgotten samples, at temperatures fitted on 2,000 of the
validation images, less that of retrained models from each other, as a share of the same for the original; 0 is as good
as another retraining, 1 nothing done, above 1 worse than nothing. It is pooled over runs (bars on the plot; dots are
single runs), and not given where the original is within twice the distance of retrained models. Validation is MNIST's
test part.
""",
    size=(11.0, 4.2),
)

"""The full-hessian experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.full_hessian.claims import judge
from excise.reproduce.studies.full_hessian.measure import Settings, measure
from excise.reproduce.studies.full_hessian.plot import draw

EXPERIMENT = Experiment(
    name="full-hessian",
    title="the block step against the full Hessian, and how their gap shrinks",
    where="Lemma 1 (proof in appendix A), section 7.1",
    data="MNIST, logistic regression on 500 to 50,000 images",
    published=Settings(),
    settings=Settings(),
    quick=Settings(sizes=(100, 200, 400), removed=2, retrained_up_to=200, epochs=4, copies=128),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
**How.** Each training set is the beginning of the next larger one, and the same samples are removed from each, one at
a time. The regressor is trained to the exact minimum w\\* in double precision. *Full* is one Newton step of all weights
on the objective without the sample, its Hessian exact and solved to seven digits; *L-FOCI* the same on the slices that
joint L-FOCI selects from 1,000 perturbed copies, *random* on as many slices at random; *paper* is `PaperStep`, the
published step on the same slices as *L-FOCI*, without noise, with the gradients of the last two of 50 epochs of SGD.
*Ours* is `Step()`, *ours, 8 steps* is `Unlearner(task, "descent")`; they and the retrained optimum, exact too,
are computed for the smaller training sets. Lines are medians over the removed samples, bands their quartiles. A power
law is fitted for each sample by least squares on logarithms; intervals are over samples. Pairs are of one sample and
one n; those in which the random block happens to be L-FOCI's are left out. A comparison holds if a one-sided sign test
over the samples gives p < 0.05, each sample by its mean log-ratio over all n: pairs of one sample are not independent.

**What the lemma overlooks.** Let F be the mean loss plus λ/2 ‖w‖². At the minimum over all n samples ∇F(w\\*, D) = 0,
so without the sample z

    ∇F(w*, D') = -(∇ℓ(w*, z) + λw*) / (n - 1) = -g / (n - 1),

which is of order 1/n in every slice, also in those that are not updated. A Newton step on the slices P moves them by
H_PP⁻¹ g_P / (n - 1). That removes the gradient on P up to O(1/n²), and leaves on the others, R,

    -(g_R - H_RP H_PP⁻¹ g_P) / (n - 1) + O(1/n²).

So the gap to the full step, which leaves O(1/n²) everywhere, is of order 1/n, unless g_R happens to equal
H_RP H_PP⁻¹ g_P. The proof writes the sum over R with ∇F(w\\*, D'), and then sets it to 0 "as we don't expect model
parameters to change drastically". What it shows to be O(1/n²) is only what the step on P adds to it in the second
order. Before any step the norm is exactly ‖g‖/(n - 1), so that its measured slope, given beside the gap's, differs from
-1 as far as g, taken at another w\\* for each n, changes with n.

**In favour of the paper.** Its update with the sample's loss alone would miss λw\\*, of order 1/n as well, and then
even the full step would not reach O(1/n²); the steps here have it.
""",
    size=(10.5, 4.8),
)

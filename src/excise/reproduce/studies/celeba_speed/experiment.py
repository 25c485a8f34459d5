"""The celeba-speed experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.celeba_speed.claims import judge
from excise.reproduce.studies.celeba_speed.measure import Settings, measure
from excise.reproduce.studies.celeba_speed.plot import draw

EXPERIMENT = Experiment(
    name="celeba-speed",
    title="wall-clock of Markov blankets, CODEC against L-CODEC",
    where="Figure 3, and its full form in appendix B",
    data="the 40 attributes of all 202,599 CelebA images, each as target in turn",
    published=Settings(),
    settings=Settings(textbook_rows=1000, most=10),
    quick=Settings(targets=2, rows=2000, textbook_rows=150, coefficient_rows=500, draws=2, growth=(200, 400)),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
*Textbook* is FOCI as one writes it from the papers: scikit-learn's kd-tree for every coefficient; for CODEC all
equally near rows are listed and one is drawn, for L-CODEC noise N(0, 0.01²), below any gap between the values -1 and
1, is added to all variables (to the predictors anew in each coefficient), and the tree's one nearest row is taken.
Listing costs time in proportion to the rows squared, so the textbook pair gets fewer rows. *This package* is `foci`
and `lfoci` on one core with all rows; both draw a tied neighbour by one look-up. Given the same `random_state` they
are the same search, so each gets draws of its own. No search goes beyond ten attributes here: the last steps are
mostly chance (two searches for one attribute with other draws ended after 10 and after 22), and searches of other
lengths can't be compared in time. All times are wall-clock, taken one after the other in one process.
""",
    size=(10.5, 7.0),
)

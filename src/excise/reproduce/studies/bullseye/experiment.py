"""The bullseye experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.bullseye.claims import judge
from excise.reproduce.studies.bullseye.measure import Settings, measure
from excise.reproduce.studies.bullseye.plot import draw

EXPERIMENT = Experiment(
    name="bullseye",
    title="Markov blankets in the 3-D bullseye data",
    where="Table 1",
    data="draws of the 3-D bullseye distribution of Yang et al. (UAI 2020)",
    published=Settings(),
    settings=Settings(samples=1500, permutations=40, runs=4, map_epochs=60),
    quick=Settings(samples=120, permutations=19, runs=2, map_epochs=2, full_samples=150),
    measure=measure,
    draw=draw,
    judge=judge,
    notes="""
Six points in space have radii that are related along a graph, and uniform directions; the blanket of Y is four of
them. TPR is the share of the four that a method finds, FPR that of the other two. All methods get the same data,
standardised.

- *CIT* is the search of the cited work: a feature is struck off when some set of the others makes it independent of
  Y, small sets first, and those that depend on Y given the rest come back. A test compares the statistic with its
  values after Y was exchanged among five neighbours in the given variables. The paper names no level: 0.05 is the
  cited work's, 0.9 (strike off only what looks very independent) the default of the paper's own script. In the
  verdicts each method is taken at the level where TPR - FPR is larger.
- *CMI* is the nearest-neighbour estimator with k = 5; *L-CODEC* is T. In raw data a variable is three columns.
  Even with perfect tests it finds 1.00 / 0.50 on average: it never looks back, and X1 and X2 do depend on Y given
  X3, X5 and X6 as long as X4 is missing, so what comes in before X4 in the random order stays.
- *codec_test (ours)* is that search with a last look back (each feature once more, given all others), by this
  package's own test, which exchanges Y within pairs and threes of neighbours. With perfect tests it finds 1.00 / 0.00.
- *Feature maps* are learned as in the cited work: one small network per point, trained so that any subset of the
  numbers predicts Y (Gaussian likelihood) and that squared distances equal the divergence between predictions; Adam
  with a cosine schedule, on the samples of the run. Learning them is not part of the seconds, as in the paper.
- L-FOCI chooses columns, so it is not applied to raw data, where a variable is three of them.

The smaller sample is the same for all methods, so that times can be compared with each other but not with the paper's.
Bars are means over the runs, with one standard deviation; diamonds are the paper's figures.
""",
    size=(10.5, 6.6),
)

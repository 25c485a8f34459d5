"""The reid experiment: its settings and notes, and what measures, draws and judges it."""

from __future__ import annotations

from excise.reproduce.framework.experiment import Experiment
from excise.reproduce.studies.reid.claims import judge
from excise.reproduce.studies.reid.measure import Settings, measure
from excise.reproduce.studies.reid.plot import draw

NOTES = """
**Stand-in.** Faces of the ORL database stand in for the sets of the paper, which are given to researchers on request
only: 30 of the 40 people are trained on with 6 images each, and the other 10 are never trained on. Four further images
of each of the 40 people are both queries and gallery; the number of the shot takes the place of the camera, so that no
query finds itself. mAP and rank-1 are those of `excise.evidence.utility.retrieval`, by cosine similarity of the
features. With `dataset` `"market1501"` (what `--paper-scale` takes), `"msmt17"`, `"prid"` or `"grid"` and the official
files in the data folder the same code runs on those; as their queries are all of people who were never trained on, some
training people are sought by their training images as well.

**Networks.** There are no ImageNet weights here. A ResNet-50 and a MobileNetV2 of full depth and a quarter of their
width are trained from random weights. *resnet20* begins with weights of CIFAR-10, which is as near to the paper's
pre-training as can be had: it finds people far better, and is the one whose maps are shown. Adam, softmax loss and a
step scheduler are those of appendix B; the learning rate is larger here, since training is short and mostly from
scratch, and was chosen at seed 1. The paper names no weight decay for these networks: it is the 0.01 of its other
experiments, since with the 0.0005 that is usual in torchreid its formula would ask for 8,000 times the noise. Batches
are shifted by up to two pixels in training.

**Ways.** *paper* is `PaperStep`: joint L-FOCI, the published curvature and noise on the block, each removal from
the noisy weights of the one before. The noise falls with the square of the number of training images; it is that of
Market-1501's 12,936, and the table says what it would be for the images there are. *ours* is our step for each image in
turn, *ours, at once* one request for all of the person's images by `Drift.of_class()`, and *retrained* is trained
without the person from the same beginning. Lines are means over the people removed, each from the model of all; bands,
of everyone else, go from the least to the largest.

**Rules.** Supported removals end when the mAP of everyone else has fallen by more than `drop` below that of the model
before; at the larger ε all of them must be supported for every network and person, at the smaller one none may support
all. *Meaningless* is a confidence of the head of at most a tenth of that before, *with confidence* at least nine
tenths, for every network. Activation maps are torchreid's (squares of the last maps, summed over channels); they
*change significantly* if 1 - cosine is at least twice that of other trained people. With few images a person, both the
layers per removal and the change of the person's maps must be larger. *About 3 minutes* is up to six.

**Reading it.** The yardstick for all of this is the retrained network. Its head cannot name the person, since it was
never taught to, and how well its features still find them differs from person to person: some are found like anyone
whom it has never seen, others were found only because they were trained on. So *meaningless* is right for the head, and
right for features and maps only as far as retraining makes them so. A person has four queries here, so that single
figures of the person are coarse.
"""

EXPERIMENT = Experiment(
    name="reid",
    title="a person removed from a network that finds people again",
    where="Figure 8, section 7.4 and appendix B",
    data="ORL faces (40 people, 10 images each), a stand-in for Market-1501, MSMT17, PRID and GRID",
    published=Settings(),
    settings=Settings(
        dataset="orl",
        networks=("resnet20", "resnet50", "mobilenet_v2"),
        widths=(1.0, 0.25, 0.25),
        size=(56, 46),
        epochs=(16, 45, 45),
        learning_rate=0.001,
        batch_size=16,
        copies=250,
        few_epochs=30,
        timed_copies=250,
    ),
    quick=Settings(
        dataset="orl",
        networks=("resnet20",),
        widths=(1.0,),
        size=(16, 12),
        trained=5,
        shots=3,
        removed_people=1,
        epochs=(2,),
        learning_rate=0.001,
        batch_size=8,
        copies=16,
        few_epochs=2,
        timed_width=0.125,
        timed_size=(32, 32),
        timed_copies=16,
    ),
    measure=measure,
    draw=draw,
    judge=judge,
    notes=NOTES,
    size=(16.0, 8.4),
)

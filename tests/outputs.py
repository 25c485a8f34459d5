"""Every kind of file that excise writes: how, and what shows that it is whole. Contents tell versions apart."""

import json
import re
import warnings
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from excise._support.files import write_json
from excise.comparison import table
from excise.comparison.comparing import Comparison
from excise.evidence.population import pieces
from excise.report import page
from excise.reproduce.framework.run import Run
from excise.statistics.blanket import Blanket
from excise.statistics.foci import Selection
from excise.task.weights import load_weights, save_weights
from excise.training.loop import Fitted
from excise.training.model_cache import KeptModel, read_model, write_model

WIDTH = 900  # 3 MB of weights, so that most of the time is spent on writing


def model_of(version):
    model = nn.Linear(WIDTH, WIDTH, bias=False).requires_grad_(False)
    model.weight.fill_(version)
    return model


def version_in(model):
    (value,) = model.weight.unique().tolist()
    return int(value)


def long_text(version):
    return f"{version:07d} " * 200_000


def version_of_text(text):
    assert len(text) == 1_600_000
    (value,) = set(text.split())
    return int(value)


class Weights:
    def __init__(self, ending):
        self.name = f"model{ending}"

    def write(self, folder, version):
        save_weights(model_of(version), folder / self.name)

    def check(self, folder):
        found = model_of(-1)
        load_weights(found, folder / self.name)
        return version_in(found)


class Record:
    """Also what a comparison writes by --out."""

    name = "record.json"

    def write(self, folder, version):
        write_json(folder / self.name, {"text": long_text(version)})

    def check(self, folder):
        return version_of_text(json.loads((folder / self.name).read_text())["text"])


class ComparisonRecord(Record):
    def write(self, folder, version):
        write_json(folder / self.name, Comparison(long_text(version), 1, 2, 3, (), 1.0).as_dict())

    def check(self, folder):
        return version_of_text(json.loads((folder / self.name).read_text())["spec"])


class Page:
    name = "page.html"

    def write(self, folder, version):
        page.html = lambda *_, **__: (
            f"<!doctype html>{long_text(version)}</html>"
        )  # the rest of the work is not writing
        page.write_report(None, folder / self.name)

    def check(self, folder):
        return version_of_text(re.fullmatch("<!doctype html>(.*)</html>", (folder / self.name).read_text())[1])


class Picture:
    """Which version it is can't be read from it."""

    def check(self, folder):
        from PIL import Image

        with Image.open(folder / self.name) as picture:
            picture.load()  # fails for one that is cut off


class ComparisonPlot(Picture):
    name = "compare.png"

    def write(self, folder, version):
        table.save_plot(Comparison(f"class:{version}", 1, 2, 3, (), 1.0), folder / self.name)


class BlanketPlot(Picture):
    name = "blanket.png"

    def write(self, folder, version):
        chosen = Selection(np.arange(2), np.array([0.5, 0.25]), np.array([0.5, 0.6]), ("a", f"b{version}"))
        Blanket("y", 100, 5, chosen, (), 0, False).save_plot(folder / self.name)


class Kept:
    """A retrained model in the cache."""

    name = "model-0123456789abcdef.safetensors"

    def write(self, folder, version):
        made = KeptModel(Fitted(model_of(version), (0.5,), 1.0), 2.0, from_file=False)
        write_model(folder / self.name, made, model_of(-1))

    def check(self, folder):
        with warnings.catch_warnings(action="error"):
            found = read_model(folder / self.name, model_of(-1))
        return version_in(found.fitted.model)


class PopulationPiece:
    name = "piece.npz"

    def __init__(self):
        self.sizes = {"forget": 1, "retain": 200_000, "test": 200_000}

    def write(self, folder, version):
        margins = {group: np.full(size, float(version)) for group, size in self.sizes.items()}
        pieces.write(folder / self.name, pieces.Piece(margins, dict.fromkeys(self.sizes, 0.5), 1.0))

    def check(self, folder):
        with warnings.catch_warnings(action="error"):
            found = pieces.read(folder / self.name, self.sizes)
        (value,) = set(np.concatenate(list(found.margins.values())))
        return int(value)


@dataclass(frozen=True)
class NoSettings:
    pass


class Steps:
    """An experiment's steps: one file each, and none that is there is ever damaged."""

    name = "steps"

    def write(self, folder, version):
        run = self.run(folder)
        key = f"number {version}"
        run.step(f"values of {key}", lambda: long_text(version))
        run.tensors(f"tensors of {key}", lambda: {"weight": model_of(version).weight.clone()})
        run.trained(f"model of {key}", model_of(-1), lambda: Fitted(model_of(version), (), 1.0))

    def check(self, folder):
        run, last = self.run(folder), -1

        def gone():
            raise LookupError

        with warnings.catch_warnings(action="error"):
            for version in range(10**6):
                key = f"number {version}"
                try:
                    assert version_of_text(run.step(f"values of {key}", gone)) == version
                    assert run.tensors(f"tensors of {key}", gone)["weight"].unique().tolist() == [version]
                    assert version_in(run.trained(f"model of {key}", model_of(-1), gone).model) == version
                except LookupError:
                    break
                last = version
        return last

    def run(self, folder):
        return Run(folder, "example", NoSettings(), data_dir=folder)


OUTPUTS = {
    "weights .safetensors": Weights(".safetensors"),
    "weights .pt": Weights(".pt"),
    "record": Record(),
    "page": Page(),
    "comparison": ComparisonRecord(),
    "comparison's plot": ComparisonPlot(),
    "blanket's plot": BlanketPlot(),
    "retrained model": Kept(),
    "piece of a population": PopulationPiece(),
    "experiment's steps": Steps(),
}

torch.set_num_threads(1)

"""The report: whole, safe to open, without anything that it should not tell, and fit for phones."""

import base64
import io
import json
import platform
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import cache
from html import escape
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from jinja2 import UndefinedError
from PIL import Image
from torch import nn
from torch.utils.data import TensorDataset

from excise import InputError, Task, Unlearner, fit
from excise.comparison.comparing import Comparison, Row, Score
from excise.evidence.auditing import audit
from excise.evidence.duplicates import NearDuplicate
from excise.evidence.gap import Gap
from excise.evidence.outcomes import Finding
from excise.privacy import certify
from excise.report import SampleView, SensitivityMap, html, rendering, sample_views, sensitivity_maps, write_report
from excise.report.elements import el
from excise.report.formatting import number
from excise.report.network_map import network_map
from excise.report.plots import Axis
from excise.report.record import Record
from excise.report.rendering import environment, stylesheet
from excise.report.samples import ShownSample, ShownSamples, _heat, png
from excise.report.sections import Guarantee, Method, Methods, Network, Result
from excise.report.tables import Fact

SECTIONS = ["request", "verdict", "figures", "losses", "attack", "network", "guarantee", "relearning", "duplicates"]
SECTIONS += ["record", "glossary"]
VOID = {"meta", "img"}
EVIL = "<script>alert('x')</script>\"'&"
FIGURES = {"UA": 0.9, "RA": 0.98, "TA": 0.87}
WHEN = datetime(2025, 3, 4, 5, 6, tzinfo=UTC)


class Page(HTMLParser):
    """Fails on tags that don't match; keeps elements and text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.elements, self.words = [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def mlp(outputs, seed):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, outputs))


def problem(loss, targets, outputs):
    """Inputs that make pictures of 4 × 4, and targets that depend on them."""
    inputs = torch.randn(240, 16, generator=torch.Generator().manual_seed(1))
    labels = targets(inputs)
    return Task(
        mlp(outputs, 0), loss, TensorDataset(inputs[:150], labels[:150]), TensorDataset(inputs[150:], labels[150:])
    )


def trained(task, seed, ids=None):
    outputs = task.model[2].out_features
    return fit(replace(task, model=mlp(outputs, seed)), ids=ids, epochs=15, lr=0.3, seed=seed).model


@pytest.fixture(scope="module")
def classes():
    task = problem(nn.CrossEntropyLoss(reduction="none"), lambda x: x[:, :3].argmax(1), 3)
    return replace(task, model=trained(task, 0))


def audited(task, ids, truths, unlearned=None):
    left = [i for i in range(len(task.train_set)) if i not in set(ids)]
    retrained = [trained(task, seed, left) for seed in range(1, truths + 1)] or None
    done = unlearned or Unlearner(task, n_jobs=1).forget(ids)
    return audit(task, task.model, done, ids, retrained=retrained)


@pytest.fixture(scope="module")
def made(classes):
    """An audit of each kind, made on first use."""
    several = problem(nn.BCEWithLogitsLoss(reduction="none"), lambda x: (x[:, :4] > 0).float(), 4)
    several = replace(several, model=trained(several, 0))
    first = (classes.train_set.tensors[1] == 0).nonzero()[:, 0].tolist()
    kinds = {
        "usual": (classes, range(12), 3),
        "no retrained": (classes, range(12), 0, mlp(3, 9)),
        "one retrained": (classes, range(12), 1),
        "class": (classes, first, 2),
        "several labels": (several, range(30), 2),
        "one sample": (classes, [7], 3),
    }

    @cache
    def make(name):
        task, ids, *rest = kinds[name]
        return audited(task, list(ids), *rest)

    return make


@pytest.fixture(scope="module")
def usual(made):
    return made("usual")


@pytest.fixture(scope="module")
def comparison():
    """Methods of which two seeds are known, and one that failed."""

    def row(method, shares, seconds):
        scores = [Score({"nKLc": Gap(gap, 1.0, 0.0)}, FIGURES, seconds, seconds / 100) for gap in shares]
        return Row(method, {}, tuple(scores))

    rows = row("original", (1.0, 1.0), 0.0), row("retrained", (0.0, 0.0), 100.0), row("drift", (0.2, 0.3), 2.0)
    return Comparison("samples:12", 2, 3, 12, (*rows, Row("scrub", {}, (), "it <diverged>")), 100.0)


@pytest.fixture(scope="module")
def full(usual, classes, comparison):
    """Everything that a report can hold."""
    pairs = NearDuplicate(3, 77, 0.0, 0.0, True, True), NearDuplicate(4, 78, 0.11, 0.2, False, False)
    return html(
        replace(usual, near_duplicates=pairs),
        samples=sample_views(classes, [0, 1]),
        maps=sensitivity_maps(classes, classes.model, mlp(3, 5), [0, 1], seed=0, copies=50),
        comparison=comparison,
        settings={"method": "drift", "drift": {"lr": 0.05}},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["usual", "no retrained", "one retrained", "class", "several labels", "one sample", "full"]
)
def test_every_audit_gives_a_whole_page(name, made, full):
    text = full if name == "full" else html(made(name))
    page = Page(text)
    found = [attributes["id"] for attributes in page.all("section")]
    assert [one for one in found if one in SECTIONS] == SECTIONS
    assert set(found) - set(SECTIONS) == ({"samples", "comparison"} if name == "full" else set())
    for tag, expected in {"html": 1, "title": 1, "h1": 1, "main": 1}.items():
        assert len(page.all(tag)) == expected
    assert all(attributes["scope"] in ("col", "row", "rowgroup") for attributes in page.all("th"))
    assert all(attributes.get("aria-label") or attributes.get("aria-hidden") or "cell" in attributes["class"]
               for attributes in page.all("svg"))  # fmt: skip
    assert not re.search(r"\b(nan|inf|None)\b", page.text)
    assert "nan" not in " ".join(attributes["d"] for attributes in page.all("path"))


def test_nothing_is_loaded_and_nothing_runs(full):
    page = Page(full)
    assert "http:" not in full
    assert "https:" not in full
    assert not {tag for tag, _ in page.elements} & {"script", "link", "iframe", "object", "a"}
    assert "@import" not in full
    assert "url(" not in full
    assert all(attributes["src"].startswith("data:image/png;base64,") for attributes in page.all("img"))
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]


def test_words_from_outside_are_escaped(usual, comparison):
    change = replace(
        usual.change,
        layers={EVIL: (1, 4), "wide": (5, 2000)},
        scores={f"{EVIL}[2]": 1.0},
        budget={EVIL: EVIL},
        certificate=replace(certify(0.1, 0.1, convex=False), reason=EVIL),
    )
    text = html(
        replace(usual, change=change, metric=EVIL),
        title=EVIL,
        samples=[SampleView(0, EVIL, text=EVIL)],
        maps=[SensitivityMap(0, {EVIL: np.zeros((2, 2))})],
        comparison=comparison,
        settings={EVIL: EVIL},
    )
    page = Page(text)
    assert page.all("script") == []
    assert "<script" not in text
    assert "alert('x')" not in text
    assert page.text.count("<script>alert('x')") >= 7
    assert "it <diverged>" in page.text


def test_elements_escape_text_and_attributes():
    assert el("p", "<&", title='"><b>') == '<p title="&quot;&gt;&lt;b&gt;">&lt;&amp;</p>'


@pytest.mark.parametrize(
    ("template", "values", "times"),
    [
        ("result.html", {"result": Result("forgotten", "good", EVIL, [Fact(EVIL, EVIL, EVIL)],
                                          (Finding("bad", EVIL, EVIL),), EVIL, EVIL)}, 8),
        ("network.html", {"network": Network(1, 2, 0.5, 1, True, [(EVIL, 1.0)], 0, EVIL, False)}, 2),
        ("samples.html", {"shown": ShownSamples((ShownSample(0, EVIL, EVIL, EVIL, {EVIL: EVIL}),), 1.0, EVIL)}, 7),
        ("guarantee.html", {"guarantee": Guarantee(certify(0.1, 0.1, convex=False), ((EVIL, 1.0),),
                                                   ((EVIL, EVIL),))}, 3),
        ("comparison.html", {"comparison": Methods([Method(1, EVIL, EVIL), Method(2, EVIL, "")], EVIL)}, 4),
        ("record.html", {"record": Record(((EVIL, EVIL),), ((EVIL, EVIL),), ((EVIL, EVIL),), ((EVIL, EVIL),)),
                         "date": WHEN}, 8),
    ],
)  # fmt: skip
def test_templates_escape_all_that_is_not_markup(template, values, times):
    text = rendering.render(template, **values)
    page = Page(text)
    attributes = [value for _, found in page.elements for value in found.values() if value]
    assert page.all("script") == []
    assert sum(words.count(EVIL) for words in [*page.words, *attributes]) == times
    assert text.count("alert(&#39;x&#39;)") == times  # no quote is left that could end an attribute


def test_no_template_lets_text_through_unescaped():
    for name in environment().list_templates():
        source, *_ = environment().loader.get_source(environment(), name)
        assert not re.search(r"\|\s*safe|autoescape|Markup", source)
    assert environment().autoescape is True


@pytest.mark.parametrize("template", ["page.html", "losses.html", "relearning.html", "record.html"])
def test_a_name_that_was_not_passed_is_an_error(template):
    with pytest.raises(UndefinedError):
        rendering.render(template)


def test_a_misspelt_field_is_an_error(usual):
    template = environment().from_string("{% if audit.retrainde %}{% endif %}")
    with pytest.raises(UndefinedError, match="retrainde"):
        template.render(audit=usual)


def test_templates_and_style_come_with_the_package(full):
    source, *_ = environment().loader.get_source(environment(), "page.html")
    included = set(re.findall(r'include "(.*?)"', source))
    assert included | {"page.html", "parts.html", "certificate.html"} == set(environment().list_templates())
    assert len(included) == 13
    assert "prefers-color-scheme: dark" in stylesheet()
    assert stylesheet() in full


def test_the_policy_forbids_all_but_the_page_itself(full):
    (policy,) = [one["content"] for one in Page(full).all("meta") if one.get("http-equiv")]
    assert set(policy.split("; ")) == {
        "default-src 'none'", "style-src 'unsafe-inline'", "img-src data:", "base-uri 'none'", "form-action 'none'",
    }  # fmt: skip


def test_the_same_audit_gives_the_same_page(usual):
    assert html(usual, when=WHEN) == html(usual, when=WHEN)


def test_by_default_nothing_of_the_samples_is_shown(usual, classes):
    text = html(usual)
    assert "<img" not in text
    assert "data:image" not in text
    assert Page(text).all("pre") == []
    for one, digest in zip(usual.ids, usual.sample_hashes, strict=True):
        assert digest in text
        assert f"{classes.train_set[one][0][0].item():.4f}" not in text


def test_samples_are_shown_when_passed(full, classes):
    pictures = [one["src"] for one in Page(full).all("img") if one["alt"] == "The sample 1"]
    shown = np.array(Image.open(io.BytesIO(base64.b64decode(pictures[0].split(",")[1]))))
    inputs = classes.train_set[1][0].reshape(4, 4).numpy()
    np.testing.assert_allclose(shown / 255, (inputs - inputs.min()) / np.ptp(inputs), atol=1 / 255)
    assert [one["alt"] for one in Page(full).all("img")][1:3] == [
        "Where the original model looks in sample 0",
        "Where the unlearned model looks in sample 0",
    ]


def test_no_paths_are_told(usual, tmp_path):
    settings = {
        "cache": tmp_path, "model": "/srv/secret/model.pt", "home": "~zoe/x", "drive": "C:\\Users\\zoe", "up": "../zoe",
        "file": "runs/zoe.json", "several": [1, "/srv/secret"], "from": "task:factory", "half": "1 / 2",
    }  # fmt: skip
    write_report(usual, tmp_path / "report.html", settings=settings)
    text = Page((tmp_path / "report.html").read_text()).text
    for secret in (str(tmp_path), "secret", "zoe"):
        assert secret not in text
    assert "task:factory" in text
    assert "1 / 2" in text
    assert f"Platform {platform.system()} {platform.machine()} " in text + " "


def test_figures_are_the_audits(usual):
    text = Page(html(usual, when=WHEN)).text
    values = [one.forget.loss for one in usual.retrained]
    assert f"{np.mean(values):.3f} ± {np.std(values, ddof=1):.3f}" in text
    assert f"{100 * usual.unlearned.test.value:.1f} %" in text
    assert usual.verdict.sentence in text
    for finding in usual.verdict.findings:
        assert finding.text in text
    for hashed in (usual.train_hash, usual.original.model_hash, usual.unlearned.model_hash):
        assert hashed in text
    assert "2025-03-04T05:06Z" in text
    assert torch.__version__ in text
    assert np.__version__ in text


def test_dates_are_utc(usual):
    assert "2025-03-04T05:06Z" in html(usual, when=WHEN.astimezone(timezone(timedelta(hours=9))))


def test_levels_have_words_and_not_only_colours(usual):
    page = Page(html(usual))
    cards = [one["class"].split()[1] for one in page.all("li") if one.get("class", "").startswith("card")]
    assert cards == [finding.level for finding in usual.verdict.findings]
    words = {"good": "Good", "warning": "Look at this", "bad": "Problem", "note": "Note"}
    assert all(words[level] in page.text for level in cards)


def test_the_request_is_told(made):
    words = Page(html(made("class"))).text
    assert f"all {len(made('class').ids)} training samples of class 0" in words
    assert (
        "forget 1 single training sample: to answer as if it had never seen it" in Page(html(made("one sample"))).text
    )
    assert "Micro-f1 on test samples" in Page(html(made("several labels"))).text
    assert "Found again from a few examples" in words
    assert "Found again from a few examples" not in Page(html(made("usual"))).text


def test_few_samples_are_unfolded_and_many_are_not(made):
    assert "open" in Page(html(made("one sample"))).all("details")[0]
    assert "open" not in Page(html(made("usual"))).all("details")[0]


def test_without_retrained_models_there_is_no_column_for_them(made):
    page = Page(html(made("no retrained")))
    assert {one["data-label"] for one in page.all("td") if "data-label" in one} == {"original", "unlearned"}
    assert "No certificate came with the model" in page.text


def test_a_proven_bound_is_told(usual):
    certificate = certify(0.02, 0.1, convex=True, sigma=1.0, delta=1e-5)
    text = Page(
        html(replace(usual, change=replace(usual.change, certificate=certificate, budget={"epsilon": 0.75})))
    ).text
    assert "A bound is proven" in text
    assert "at most 0.200" in text
    assert f"ε (0: nothing leaks) {number(certificate.epsilon)}" in text
    assert "epsilon 0.75" in text


def test_near_duplicates_and_methods_are_listed(full):
    text = Page(full).text
    assert "3 77 exact copy 0 % the same" in text
    assert "4 78 0.110 20 % another" in text
    assert "drift 0.25 ± 0.07 10.0 % 98.0 % 87.0 % 2.0 %" in text


def test_the_map_colours_the_slices_that_changed(usual):
    change = replace(usual.change, layers={"first": (2, 5)}, scores={"first[1]": 4.0, "first[3]": 1.0})
    page = Page(network_map(change))
    places = {
        (one["class"], one.get("fill-opacity")): re.findall(r"M(\d+) (\d+)", one["d"]) for one in page.all("path")
    }
    assert places[("cell", None)] == [("0", "0"), ("2", "0"), ("4", "0")]
    strong, weak = sorted(((float(key[1]), value) for key, value in places.items() if key[1]), reverse=True)
    assert strong == (1.0, [("1", "0")])
    assert weak[1] == [("3", "0")]
    assert weak[0] < 1


def test_the_map_is_a_bar_where_slices_are_not_known(usual):
    page = Page(network_map(replace(usual.change, layers={"first": (16, 64)}, scores={})))
    assert [one["d"] for one in page.all("path")][1].startswith("M0 0h16v1")
    assert page.all("svg")[0]["aria-label"] == "Layer first: 16 of 64 slices changed."


def test_axes():
    assert not Axis.over([1.0, 2.0, 3.0]).log
    wide = Axis.over([0.0, 0.01, 0.02, 0.03, 30.0])
    assert (wide.low, wide.high, wide.log) == (0.01, 100.0, True)
    assert wide.at([0.0, 1.0, 1e9]).tolist() == pytest.approx([0, 50, 100])
    assert [word for _, word in wide.ticks] == ["0.01", "0.1", "1", "10", "100"]
    assert [word for _, word in Axis(-1.0, 1.0).ticks] == ["−1.0", "−0.5", "0.0", "0.5", "1.0"]
    assert Axis.over([2.0]).at([2.0]).tolist() == [50]
    assert Axis.over([float("nan")]).at([0.5]).tolist() == [50]


@pytest.mark.parametrize("shape", [(3, 5), (4, 2, 3)])
def test_png_is_read_back_by_others(shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    assert np.array_equal(np.array(Image.open(io.BytesIO(png(pixels)))), pixels)


def test_heat_maps_share_one_scale():
    low, high = _heat(np.array([[-0.1, 0.0]]), 0.5), _heat(np.array([[0.5, 0.9]]), 0.5)
    assert (low[0, 0] == low[0, 1]).all()
    assert (high[0, 0] == high[0, 1]).all()
    assert high.sum() > low.sum()


def test_views_of_text_tokens_and_pictures_in_colour():
    def view(entry):
        (found,) = sample_views(Task(nn.Linear(2, 2), nn.CrossEntropyLoss(reduction="none"), [entry]), [0])
        return found

    assert view(("good film", 1)).text == "good film"
    assert view((torch.tensor([101, 7, 102]), torch.tensor(1))).text == "101, 7, 102"
    assert view({"input_ids": torch.tensor([101, 7]), "labels": torch.tensor(3)}).target == "3"
    assert view((torch.tensor([0.25, 1.5]), 0)).text == "0.25, 1.5"
    assert view((torch.arange(30), 0)).text.endswith("23, … (30 in all)")
    assert view((torch.rand(3, 6, 5), 0)).picture.shape == (6, 5, 3)
    assert view((torch.rand(1, 6, 5), 0)).picture.shape == (6, 5)


def test_a_file_that_can_not_be_written(usual, tmp_path):
    with pytest.raises(InputError, match="could not be written"):
        write_report(usual, tmp_path / "missing" / "report.html")


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
FRAME = """<!doctype html><style>:root {{ color-scheme: light dark }} iframe {{ border: 0; height: 30000px }}</style>
<body><iframe style="width: {width}px" srcdoc="{page}"></iframe><script>
document.querySelector("iframe").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement, view = page.defaultView;
  const beyond = (one) => !one.closest(".scroll, svg") && one.getBoundingClientRect().right > root.clientWidth + 1;
  document.body.dataset.found = JSON.stringify({{
    inside: root.clientWidth, needed: root.scrollWidth, page: view.getComputedStyle(page.body).backgroundColor,
    dark: view.matchMedia("(prefers-color-scheme: dark)").matches,
    beyond: [...page.querySelectorAll("section *")].filter(beyond).map((one) => one.outerHTML),
  }});
}};
</script></body>"""  # a window of Chromium is never as narrow as a phone, a frame can be


def render(file, profile, *options):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--hide-scrollbars"]
    flags += [f"--user-data-dir={profile}", "--virtual-time-budget=2000", "--enable-logging=stderr", "--v=0"]
    command = [CHROMIUM, *flags, *options, file.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed, so nothing is rendered")
@pytest.mark.parametrize(("width", "dark"), [(360, False), (390, True), (1280, False), (1280, True)])
def test_it_fits_the_screen(width, dark, full, tmp_path):
    file = tmp_path / "frame.html"
    file.write_text(FRAME.format(width=width, page=escape(full)))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    done = render(file, tmp_path / "profile", scheme, "--window-size=1400,900", "--dump-dom")
    assert "CONSOLE" not in done.stderr
    found = json.loads(Page(done.stdout).all("body")[0]["data-found"])
    assert found["inside"] == width
    assert found["needed"] == width
    assert found["beyond"] == []
    assert found["dark"] is dark
    assert found["page"] == ("rgb(19, 21, 25)" if dark else "rgb(253, 253, 251)")


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed, so nothing is rendered")
def test_its_own_policy_lets_no_script_run_but_shows_the_page(full, tmp_path):
    file, picture = tmp_path / "report.html", tmp_path / "shot.png"
    file.write_text(full.replace("</body>", "<script>document.body.textContent = ''</script></body>"))
    options = "--blink-settings=preferredColorScheme=1", f"--screenshot={picture}", "--window-size=1280,900"
    assert "Content Security Policy" in render(file, tmp_path / "profile", *options).stderr
    shown = np.array(Image.open(picture).convert("L"))
    assert shown.shape == (900, 1280)
    assert shown.min() < 60  # ink
    assert shown.max() > 250  # on paper

"""The demo: the Markov blanket of a real table, checked by a method that knows nothing of it."""

from __future__ import annotations

import numpy as np
import pandas as pd
from rich.console import Console
from sklearn.datasets import load_diabetes
from sklearn.model_selection import RepeatedKFold, cross_val_score
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from excise.blanket import find_blanket
from excise.tables import prepare

SERUM = {"s1": "cholesterol", "s2": "ldl", "s3": "hdl", "s4": "chol/hdl", "s5": "log_triglycerides", "s6": "glucose"}


def run(console: Console) -> None:
    """Find the blanket of the diabetes table's target, print it, and compare it with all columns and with the rest."""
    columns, target = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
    columns = columns.rename(columns=SERUM)
    console.print(
        f"{len(columns)} diabetes patients (Efron et al. 2004), {columns.shape[1]} measurements each. "
        "Which of them tell how the disease has progressed a year later?\n",
        highlight=False,
    )
    found = find_blanket(prepare(columns.assign(progression=target), "progression"))
    found.show(console)
    chosen = list(found.names)
    others = [name for name in columns.columns if name not in chosen]
    console.print("\nA check from outside, nearest-neighbour regression on patients it has not seen (R²):")
    for label, names in (("the blanket", chosen), ("all columns", list(columns.columns)), ("all the others", others)):
        console.print(f"  {label:<15}{len(names):>3} columns   {_r2(columns[names], target):.2f}", highlight=False)


def _r2(columns: pd.DataFrame, target: pd.Series) -> float:
    model = make_pipeline(StandardScaler(), KNeighborsRegressor(n_neighbors=20))
    folds = RepeatedKFold(n_splits=10, n_repeats=5, random_state=0)
    return float(np.mean(cross_val_score(model, columns, target, cv=folds)))

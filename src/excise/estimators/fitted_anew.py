"""Estimators whose ``fit`` is itself the cheapest exact way: what it does per row is no more than to look at it."""

from __future__ import annotations

from typing import Any

from sklearn.decomposition import TruncatedSVD
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.feature_selection import VarianceThreshold
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.impute import SimpleImputer
from sklearn.naive_bayes import CategoricalNB
from sklearn.neighbors import (
    KNeighborsClassifier,
    KNeighborsRegressor,
    NearestCentroid,
    RadiusNeighborsClassifier,
    RadiusNeighborsRegressor,
)
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    RobustScaler,
)

from excise.estimators.kept import Data, Kept, Options, way_for
from excise.estimators.refitting import Again, on_its_data

WHY = {
    KNeighborsClassifier: "it keeps the rows themselves",
    KNeighborsRegressor: "it keeps the rows themselves",
    RadiusNeighborsClassifier: "it keeps the rows themselves",
    RadiusNeighborsRegressor: "it keeps the rows themselves",
    NearestCentroid: "its fit is one look at each row",
    CategoricalNB: "its fit is one look at each row",
    QuadraticDiscriminantAnalysis: "the signs of its axes follow from the rows alone",
    TruncatedSVD: "its solver draws at random",
    MinMaxScaler: "the next smallest and largest values can be anywhere",
    MaxAbsScaler: "the next largest values can be anywhere",
    RobustScaler: "the new quantiles can be anywhere",
    SimpleImputer: "its fit is one look at each row",
    VarianceThreshold: "its fit is one look at each row",
    OneHotEncoder: "a category may have been in these rows alone",
    OrdinalEncoder: "a category may have been in these rows alone",
    CountVectorizer: "a word may have been in these rows alone",
    TfidfVectorizer: "a word may have been in these rows alone",
    TfidfTransformer: "its fit is one look at each row",
    HashingVectorizer: "it learns nothing",
    Normalizer: "it learns nothing",
    Binarizer: "it learns nothing",
    FunctionTransformer: "it learns nothing",
    PolynomialFeatures: "it learns nothing",
}


@way_for(*WHY)
def keep_to_fit_anew(estimator: Any, data: Data, options: Options) -> Kept:
    """Leave all to ``fit``."""
    kept = Again(estimator, data, WHY[type(estimator)])
    return kept if options.trusted else on_its_data(kept, estimator, data)


@way_for(GaussianProcessRegressor)
def keep_gaussian_process(estimator: Any, data: Data, options: Options) -> Kept:
    """Its factor must be computed anew; so must its kernel's hyperparameters, which were learned from the rows too."""
    why = "its factor is that of all rows"
    if estimator.optimizer is not None:
        why += ", and the hyperparameters of its kernel were learned from all of them"
    kept = Again(estimator, data, why)
    return kept if options.trusted else on_its_data(kept, estimator, data)

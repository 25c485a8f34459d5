"""The minimum of an estimator's objective in extended precision, from formulas that share nothing with the package."""

import numpy as np
from scipy import sparse
from sklearn.utils.class_weight import compute_class_weight

LONG = np.longdouble
STEPS = 12


def _logistic(z, t):
    chance = 1 / (1 + np.exp(-z))
    return chance - (t > 0), chance * (1 - chance)


def _squared_hinge(z, t):
    inside = t * z < 1
    return np.where(inside, 2 * (z - t), 0), np.where(inside, 2, 0)  # t² = 1


def _modified_huber(z, t):
    m = t * z
    return np.where(m >= 1, 0, np.where(m >= -1, 2 * (z - t), -4 * t)), np.where(abs(m) < 1, 2, 0)


def _squared_error(z, t):
    return z - t, np.ones_like(z)


def _huber(epsilon):
    return lambda z, t: (
        np.where(abs(z - t) > epsilon, epsilon * np.sign(z - t), z - t),
        np.where(abs(z - t) > epsilon, 0, 1),
    )


def _insensitive(epsilon):
    def both(z, t):
        past = abs(z - t) - epsilon
        return np.where(past > 0, 2 * past * np.sign(z - t), 0), np.where(past > 0, 2, 0)

    return both


def _deviance(power):
    if power == 0:
        return _squared_error

    def both(z, t):
        mean = np.exp(z)
        slope = (mean - t) * mean ** (1 - LONG(power))
        return slope, mean ** (1 - LONG(power)) * ((2 - LONG(power)) * mean - (1 - LONG(power)) * t)

    return both


def parameters(estimator):
    """All that the certificate is about, in one vector."""
    parts = [estimator.coef_]
    if estimator.fit_intercept:
        parts.append(np.atleast_1d(estimator.intercept_))
    if hasattr(estimator, "scale_"):
        parts.append([estimator.scale_])
    return np.concatenate([np.ravel(np.asarray(part, dtype=LONG)) for part in parts])


def distance(estimator, X, y, weight=None):
    """How far the estimator's parameters are from the minimum of its objective on these rows."""
    X = np.asarray(X.toarray() if sparse.issparse(X) else X, dtype=LONG)
    weight = np.ones(len(y), dtype=LONG) if weight is None else np.asarray(weight, dtype=LONG)
    if estimator.fit_intercept:
        X = np.column_stack([X, np.ones(len(X), dtype=LONG)])
    name = type(estimator).__name__
    if name == "HuberRegressor":
        return _to_minimum(_huber_regressor(estimator, X, np.asarray(y, dtype=LONG), weight), parameters(estimator))
    if hasattr(estimator, "classes_"):
        return _of_classifier(estimator, name, X, np.asarray(y), weight)
    return _of_regressor(estimator, name, X, np.asarray(y, dtype=LONG), weight)


def _of_regressor(estimator, name, X, y, weight):
    ridge = np.zeros(X.shape[1], dtype=LONG)
    columns = estimator.n_features_in_
    if name == "SGDRegressor":
        losses = {"squared_error": _squared_error, "huber": _huber(estimator.epsilon)}
        loss = losses.get(estimator.loss) or _insensitive(estimator.epsilon)
        weight, ridge[:columns] = weight / len(y), estimator.alpha
    elif name == "LinearSVR":
        loss, weight, ridge[:columns] = _insensitive(estimator.epsilon), estimator.C * weight, 1
        ridge[columns:] = 1 / LONG(estimator.intercept_scaling) ** 2
    else:
        power = {"PoissonRegressor": 1, "GammaRegressor": 2}.get(name) or getattr(estimator, "power", None)
        loss, weight, ridge[:columns] = _deviance(power), weight / weight.sum(), estimator.alpha
    return _to_minimum(_linear(X, y, weight, ridge, loss), parameters(estimator))


def _of_classifier(estimator, name, X, y, weight):
    classes = estimator.classes_
    assert np.array_equal(classes, np.unique(y))
    columns = estimator.n_features_in_
    balance = None if name == "SGDClassifier" else weight.astype(float)
    factors = compute_class_weight(estimator.class_weight, classes=classes, y=y, sample_weight=balance).astype(LONG)
    ridge = np.zeros(X.shape[1], dtype=LONG)
    if name == "SGDClassifier":
        penalty, scale = estimator.alpha, 1 / LONG(len(y))
    else:
        penalty, scale = (0 if np.inf == estimator.C else 1), (1 if np.inf == estimator.C else LONG(estimator.C))
    ridge[:columns] = penalty
    if name == "LinearSVC" or getattr(estimator, "solver", "") == "liblinear":
        ridge[columns:] = 1 / LONG(estimator.intercept_scaling) ** 2
    coef = np.asarray(estimator.coef_, dtype=LONG)
    rows = np.column_stack([coef, estimator.intercept_]) if estimator.fit_intercept else coef
    if name == "LogisticRegression" and len(classes) > 2:
        weight = scale * weight * factors[np.searchsorted(classes, y)]
        return _to_minimum(_softmax(X, (y[:, None] == classes).astype(LONG), weight, ridge), rows.ravel(), len(classes))
    loss = {
        "log_loss": _logistic,
        "squared_hinge": _squared_hinge,
        "modified_huber": _modified_huber,
        "squared_error": _squared_error,
        "huber": _huber(getattr(estimator, "epsilon", 0)),
        "squared_epsilon_insensitive": _insensitive(getattr(estimator, "epsilon", 0)),
    }[getattr(estimator, "loss", "log_loss")]
    total = LONG(0)
    for place, row in enumerate(rows):
        which = classes[1] if len(classes) == 2 else classes[place]
        other = factors[0] if len(classes) == 2 else LONG(1)
        own = factors[1] if len(classes) == 2 else factors[place]
        s = scale * weight * np.where(y == which, own, other)
        total += _to_minimum(_linear(X, np.where(y == which, LONG(1), LONG(-1)), s, ridge, loss), row) ** 2
    return np.sqrt(total)


def _linear(X, t, s, ridge, loss):
    def at(w):
        slope, curvature = loss(X @ w, t)
        return X.T @ (s * slope) + ridge * w, (X.T * (s * curvature)) @ X + np.diag(ridge)

    return at


def _softmax(X, T, s, ridge):
    many = T.shape[1]

    def at(w):
        z = X @ w.reshape(many, -1).T
        p = np.exp(z - z.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        gradient = ((p - T) * s[:, None]).T @ X + ridge * w.reshape(many, -1)
        p, rows, share = p.astype(float), X.astype(float), s.astype(float)
        bends = np.einsum("i,ia,ab->iab", share, p, np.eye(many)) - np.einsum("i,ia,ib->iab", share, p, p)
        H = np.block([[(rows.T * bends[:, a, b]) @ rows for b in range(many)] for a in range(many)])
        return gradient.ravel(), H + np.diag(np.tile(ridge, many)).astype(float)

    return at


def _huber_regressor(estimator, X, y, s):
    columns = estimator.n_features_in_
    cut = LONG(estimator.epsilon)

    def at(w):
        sigma, r = w[-1], y - X @ w[:-1]
        inside = abs(r) <= cut * sigma
        slope = np.where(inside, -2 * r / sigma, -2 * cut * np.sign(r))
        by_sigma = s.sum() - s[inside] @ (r[inside] / sigma) ** 2 - cut**2 * s[~inside].sum()
        gradient = np.append(X.T @ (s * slope), by_sigma)
        gradient[:columns] += 2 * estimator.alpha * w[:columns]
        wide = np.column_stack([X, r / sigma])[inside]
        H = (wide.T * (2 * s[inside] / sigma)) @ wide
        H[range(columns), range(columns)] += 2 * estimator.alpha
        return gradient, H

    return at


def _to_minimum(at, start, classes=0):
    """The length of the way there; Newton steps in extended precision, with a Hessian whose accuracy hardly matters."""
    w = np.array(start, dtype=LONG)
    for _ in range(STEPS):
        gradient, H = at(w)
        H = H.astype(float)
        if classes:  # the same vector on all classes changes nothing; the minimum sums to 0
            H += np.kron(np.ones((classes, classes)), np.eye(len(w) // classes)) * np.trace(H) / len(w)
        step = np.linalg.solve(H, gradient.astype(float))
        w = w - step
        if classes:
            w = (w.reshape(classes, -1) - w.reshape(classes, -1).mean(axis=0)).ravel()
    moving = np.linalg.norm(step)
    assert moving <= 1e-13 * (1 + np.linalg.norm(w.astype(float))), "the oracle did not converge"
    return np.sqrt(np.sum((w - start) ** 2))

"""A scikit-learn pipeline with weighted rows, trained on workers of which the slowest are not waited for."""

import numpy as np
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from anyk.sklearn import AnykClassifier

random = np.random.default_rng(0)
rows = 400
table = np.column_stack([random.normal(1e5, 2e4, rows), random.integers(0, 4, rows)])  # an income and a region
bought = table[:, 0] / 2e4 + table[:, 1] + random.normal(size=rows) > 6.5
weights = random.integers(1, 5, rows)  # how many customers a row stands for

encode = make_column_transformer((OneHotEncoder(), [1]), remainder="passthrough", sparse_threshold=0)
ours = AnykClassifier("frc:stragglers=2", workers=6, delays="exp:mean=0.1", tol=1e-6, max_iter=5000)
model = make_pipeline(encode, ours).fit(table, bought, anykclassifier__sample_weight=weights)
other = make_pipeline(encode, LogisticRegression(tol=1e-10, max_iter=10_000))
other.fit(table, bought, logisticregression__sample_weight=weights)

difference = abs(model.predict_proba(table) - other.predict_proba(table)).max()
print(f"{model.score(table, bought, weights):.3f} of the customers are predicted correctly")
print(f"probabilities differ from those of scikit-learn's LogisticRegression by at most {difference:.1g}")
print(f"{model[-1].n_iter_} steps, {model[-1].run_.ledger['cancelled']} chunks not waited for")

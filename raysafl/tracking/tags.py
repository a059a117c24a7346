"""The tags by which raysafl finds again in MLflow what it has logged."""

# Of runs: what a run of MLflow stands for, and how far it has been logged.
KIND = "raysafl.kind"
SWEEP = "raysafl.sweep"
RUN = "raysafl.run_id"
LOGGED = "raysafl.logged_round"
DIGEST = "raysafl.digest"
STAMP = "raysafl.stamp"
# How much of a run has been logged: `summary` or `curves`.
TRACK = "raysafl.track"
# By which rule metrics and tags were named. MLflow can neither rename nor remove a
# metric, so runs that were logged by another rule are replaced.
NAMES = "raysafl.names"

# Of experiments: the identity of the folder that an experiment belongs to (see
# `raysafl.storage.identity`).
FOLDER = "raysafl.folder"
PLACE = "raysafl.place"
FILE = "raysafl.file"

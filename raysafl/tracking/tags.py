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

# Of experiments: the id of the folder that an experiment belongs to.
FOLDER = "raysafl.folder"

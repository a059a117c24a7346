"""evaluation."""

SPAN = 2500  # test samples that are summed by themselves: the same whoever evaluates them
EVAL_BATCH = {"cpu": 250, "cuda": 2500}  # small enough for a core's cache, large for a GPU

"""The papers' theorems on convergence and learnability, as experiments of minutes."""

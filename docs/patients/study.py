from dataclasses import replace

import pandas as pd
import raysafl as fl


class Median(fl.Algorithm):
    """The server subtracts the median of the clients' updates (old minus new model)."""

    def round(self, state, ids, key):
        update = yield fl.Train(state.w_P, ids)
        return replace(state, w_P=state.w_P - update.delta_MP.median(0).values)


patients = fl.from_csv(
    "patients.csv", label="ill", client="hospital", test_share=0.2, standardise=True
)
base = fl.Run(
    data=fl.Federation(
        dataset=patients,
        clients=8,  # one for each hospital
        partition=fl.ByColumn(column="hospital"),
        validation=fl.Validation(clients=0.1),  # a tenth of each client's samples
    ),
    model=fl.Logistic(),
    algorithm=fl.FedAvg(),
    participation=fl.Uniform(m=3),  # three hospitals are sampled in each round
    local=fl.LocalTraining(lr=0.1, batch_size=16, epochs=1),
    rounds=50,
    keep="last",
)
grid = {"algorithm": {"mean": fl.FedAvg(), "median": Median()}, "local.lr": [0.03, 0.1]}
SWEEP = fl.grid(base, grid, seeds=3, name="patients")
if __name__ == "__main__":
    best = fl.Runner(SWEEP).run().best
    print(best.labels, best.test, best.test_interval)
    model = fl.load_model("results/patients", best.run_id)  # of the first seed
    print(model.predict(pd.read_csv("new.csv")))

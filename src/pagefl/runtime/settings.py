"""What a run can be told, beside its task and its algorithm."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from pagefl.core.errors import shown
from pagefl.game.rewards import DemandRatio

MOST = 10**9  # of anything that is counted: what lies beyond would overflow somewhere, long after
MOST_WORKERS = 1024
NO_MATTER = ("workers", "checkpoint_seconds", "deploy")  # to a simulation's result

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Every = Annotated[int, Field(ge=0, le=MOST)]


def each_once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("it should name each only once")
    return names


class DeploySettings(BaseModel):
    """How a federation of real nodes is run; a simulation takes no notice."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    deadline: Finite = Field(600.0, gt=0, description="seconds that a round's replies are waited for")
    patience: Finite = Field(600.0, gt=0, description="seconds that nodes are waited for before the first round")
    fewest: Finite = Field(0.5, gt=0, le=1, description="share of the clients asked whose replies make a round")
    largest_norm: Finite = Field(100.0, gt=1, description="of an upload, in multiples of the round's median")
    tells: list[Literal["accuracy", "loss", "moves", "rewards"]] = Field(
        ["accuracy", "loss", "moves", "rewards"], description="what clients tell beside uploads and data size"
    )

    @field_validator("tells")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        return each_once(value)


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rounds: Count = Field(1000, description="communication rounds")
    seed: int = Field(0, ge=0, lt=2**63, description="of the data and of every random stream")
    lr: Finite = Field(0.1, gt=0, description="learning rate of local SGD")
    epochs: Count = Field(5, description="local epochs in a round")
    batch_size: Count = Field(32, description="the last smaller batch is kept")
    weight_decay: Finite = Field(0.0, ge=0, description="added to the gradient, after clipping")
    clip: float = Field(10.0, gt=0, description="largest norm of a step's direction; inf for none")
    participation: Finite = Field(1.0, gt=0, le=1, description="share of the clients that train in a round")
    holdout: Finite = Field(0.0, ge=0, lt=1, description="share of the training data kept out for rewards")
    reward_penalty: Finite = Field(0.0, ge=0, description="added to a loss before it becomes the reward 1 / loss")
    reward: Literal["aggregate", "weighted-local"] = Field("aggregate", description="what the server's reward is one over")
    protocol: Literal["clean", "released"] = Field("clean", description="released: states, rewards on TEST data")
    look: Count = Field(4000, description="most examples of the server's game half on which it looks at each upload")
    gamma: Finite = Field(0.99, gt=0, lt=1, description="discount of pay-offs")
    bias: str | list[list[int | str]] = Field("1:1", description="server:clients, or [[round, ratio], …]")
    freeze: list[Literal["p", "alpha", "eta"]] = Field([], description="factors that stay fixed while the others are played")
    stop: Literal["rounds", "equilibrium"] = Field("rounds", description="equilibrium: end when the game has come to rest")
    equilibrium_window: int = Field(50, ge=2, le=MOST, description="rounds over which it must have rested")
    equilibrium_models: Finite = Field(1e-3, gt=0, description="largest mean relative change of the models in a round")
    equilibrium_payoffs: Finite = Field(1e-2, gt=0, description="and of the pay-offs")
    on_bad_upload: Literal["quarantine", "stop"] = Field("quarantine", description="what a NaN or infinite upload does")
    device: str = Field("cpu", description="a torch device")
    workers: int = Field(
        0, ge=0, le=MOST_WORKERS, description="worker processes; 0: one per core. Changes speed, never results"
    )
    chunk: Every = Field(0, description="rows trained together; 0: what suits the path")
    path: Literal["auto", "fused", "stacked", "rows"] = Field("auto", description="how rows are trained; auto measures once")
    checkpoint_seconds: Finite = Field(10.0, ge=0, description="time between checkpoints; 0: after every round")
    stages_every: Every = Field(0, description="rounds between checkpoints that are kept for `pagefl verify`; 0: none")
    deploy: DeploySettings = Field(DeploySettings(), description="of `pagefl deploy`: deadline, fewest, largest_norm, tells …")
    clients_every: Every = Field(1, description="rounds between records of every client; 0: none")

    @field_validator("bias")
    @classmethod
    def _ratios(cls, value: str | list[list[int | str]]) -> str | list[list[int | str]]:
        for entry in [[0, value]] if isinstance(value, str) else value:
            if len(entry) != 2 or not isinstance(entry[0], int) or not isinstance(entry[1], str) or entry[0] < 0:
                raise ValueError(f"{shown(entry)} should be [round, ratio], such as [300, '10:1']")
            DemandRatio.parse(entry[1])
        if isinstance(value, list) and len({entry[0] for entry in value}) < len(value):
            raise ValueError("it should have one ratio for each round")
        return value

    @field_validator("freeze")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        return each_once(value)

    def shifts(self) -> list[tuple[int, DemandRatio]]:
        """When the balance of demand changes, and to what."""
        entries: list[list[int | str]] = [[0, self.bias]] if isinstance(self.bias, str) else self.bias
        return sorted(((int(start), DemandRatio.parse(str(ratio))) for start, ratio in entries), key=lambda shift: shift[0])

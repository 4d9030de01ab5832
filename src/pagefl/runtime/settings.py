"""Settings of a run, apart from its task, algorithm and players."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

from pagefl.core.errors import shown
from pagefl.core.training.options import Optimiser
from pagefl.devices.fleet import HOURS, REFERENCE
from pagefl.game.rewards import DemandRatio
from pagefl.trust.privacy.accounting import LEAST, Accountant

MOST = 10**9  # limit of every count; larger ones would overflow later
MOST_WORKERS = 1024
NO_MATTER = (
    "workers",
    "executor",
    "address",
    "checkpoint_seconds",
    "deploy",
)  # do not change a simulation's result
# Settings that came when there were results already: a run of before counts as one with their defaults.
LATER = ("optimiser", "groups", "privacy", "defence", "attack", "devices")

Finite = Annotated[float, Field(allow_inf_nan=False)]
Count = Annotated[int, Field(ge=1, le=MOST)]
Every = Annotated[int, Field(ge=0, le=MOST)]


def each_once(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError("it should name each only once")
    return names


class DeploySettings(BaseModel):
    """Settings of a deployment on real nodes. A simulation ignores them."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    deadline: Finite = Field(600.0, gt=0, description="seconds to wait for the replies of a round")
    patience: Finite = Field(600.0, gt=0, description="seconds to wait for nodes before the first round")
    fewest: Finite = Field(
        0.5,
        gt=0,
        le=1,
        description="smallest share of the clients asked that must reply for a round to count",
    )
    largest_norm: Finite = Field(
        30.0, gt=1, description="largest norm of an upload, as a multiple of the usual one"
    )
    secure: bool = Field(
        False, description="whether uploads are aggregated securely: the server learns sums of them only"
    )
    secure_range: Finite = Field(
        8.0,
        gt=0,
        description="with secure: largest value of an upload; a client with larger ones is left out",
    )
    secure_size: Count = Field(
        10_000, description="with secure: largest data size that counts; larger ones count as this"
    )
    secure_threshold: Finite = Field(
        0.6,
        gt=0.5,
        le=1,
        description="with secure: share of a client's neighbours that must answer to take off its mask",
    )
    secure_neighbours: Every = Field(
        0, description="with secure: clients, itself included, that hold shares of a client's mask; 0 for all"
    )
    tells: list[Literal["accuracy", "loss", "moves", "rewards", "holdout"]] = Field(
        ["accuracy", "loss", "moves", "rewards", "holdout"],
        description="what clients report besides uploads and data size",
    )

    @field_validator("tells")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        return each_once(value)


class PersonalSettings(BaseModel):
    """Settings of the personal step, which makes each client's own model from the shared one."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    when: Literal["end", "never"] | Count = Field(
        "end",
        description="when it is taken: after the last round, never, or every so many judged rounds and after "
        "the last one",
    )


class PrivacySettings(BaseModel):
    """Settings of client-level differential privacy."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    epsilon: Finite = Field(
        0.0,
        ge=0,
        le=1000,
        description="privacy budget of each client: the run ends before it would be passed; 0 for no privacy",
    )
    delta: Finite = Field(
        1e-5,
        gt=0,
        lt=0.5,
        description="probability with which epsilon may not hold; well below one over the number of clients",
    )
    clip: Finite = Field(
        1.0,
        gt=0,
        description="norm to which a client's whole upload is clipped; with adaptive, in the first round",
    )
    noise: Finite = Field(
        0.0,
        ge=0,
        le=1e6,
        description="standard deviation of the noise, as a multiple of clip; 0 for the least with which all "
        "rounds can be played",
    )
    adaptive: Finite = Field(
        0.0,
        ge=0,
        lt=1,
        description="quantile of the uploads' norms that clip follows; 0 for a clip that stays",
    )
    accountant: Accountant = Field(
        "pld",
        description="how the cost of rounds is added up: pld (privacy loss distributions, tighter) or rdp "
        "(Rényi divergences)",
    )

    @field_validator("noise")
    @classmethod
    def _enough(cls, value: float) -> float:
        if 0 < value < LEAST:
            raise ValueError(f"it should be 0, or at least {LEAST}, since less hides nobody")
        return value


class DefenceSettings(BaseModel):
    """Settings of the server's defence against hostile clients."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal[
        "none",
        "clip",
        "median",
        "trimmed-mean",
        "geometric-median",
        "krum",
        "multi-krum",
        "centred-clipping",
    ] = Field("none", description="rule by which uploads are aggregated in place of the weighted mean")
    before: Literal["none", "nnm", "bucketing"] = Field(
        "none",
        description="what is done to uploads before: each is mixed with its nearest neighbours, or some are "
        "averaged at random",
    )
    share: Finite = Field(
        0.2, ge=0, lt=0.5, description="share of clients that may be hostile, where a rule needs to know it"
    )
    bound: Finite = Field(
        1.0,
        gt=0,
        description="largest norm of an update, as a multiple of the round's median, of clip and "
        "centred-clipping",
    )
    steps: int = Field(3, ge=1, le=1000, description="steps of geometric-median and centred-clipping")
    bucket: int = Field(2, ge=1, le=MOST, description="uploads that bucketing averages")
    largest_size_share: Finite = Field(
        0.5,
        gt=0,
        le=1,
        description="largest share of a round's training examples that one of three or more clients counts "
        "for; a larger claim is cut",
    )


class AttackSettings(BaseModel):
    """Settings of simulated hostile clients."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: Literal["none", "signflip", "scale", "gaussian", "labelflip", "alie", "ipm", "mimic", "collude"] = (
        Field("none", description="what hostile clients do")
    )
    share: Finite = Field(0.2, ge=0, lt=1, description="share of all clients that are hostile")
    factor: Finite = Field(
        -10.0, description="of scale: by what updates are multiplied; of gaussian: how long the noise is"
    )
    strength: Finite = Field(
        0.0, ge=0, description="of alie and ipm; 0 for the one that does most harm to the defence in use"
    )


class DevicesSettings(BaseModel):
    """Settings of simulated devices and time."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(
        "none",
        min_length=1,
        description="clients' devices: none (time is not simulated), equal, phones, or the path of a CSV "
        "with a row for each client",
    )
    reference: Finite = Field(
        REFERENCE,
        ge=0,
        description="training FLOPs per example of the model whose seconds equal and phones state; 0 for "
        "this run's own model",
    )
    hours: Finite = Field(
        HOURS,
        gt=0,
        le=24,
        description="hours of a simulated day in which a phone is available; 24 for always",
    )
    barrier: Literal["wait", "deadline", "first"] = Field(
        "wait",
        description="when a round ends: after all uploads, at the deadline, or after the first ones, as many "
        "as participation says",
    )
    deadline: Finite = Field(
        0.0,
        ge=0,
        description="seconds of a round, for the deadline and for players that plan with it; 0 for none",
    )
    over: Finite = Field(
        1.0, ge=1, le=1000, description="with first: clients drawn, as a multiple of those waited for"
    )
    late: Literal["drop", "buffer"] = Field(
        "drop",
        description="what becomes of late uploads: nothing, or they count in the round in which they arrive, "
        "with less weight",
    )
    select: Literal["random", "oort"] = Field(
        "random",
        description="how participants are drawn: at random, or by the use and the speed that they have shown",
    )


class Settings(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rounds: Count = Field(1000, description="number of communication rounds")
    seed: int = Field(0, ge=0, lt=2**63, description="seed of the data and of every random stream")
    lr: Finite = Field(
        0.1, gt=0, description="learning rate of local training; with deltasgd, of its first step"
    )
    epochs: Count = Field(5, description="local epochs in each round")
    batch_size: Count = Field(
        32, description="examples in a local batch; the last, smaller batch is used too"
    )
    weight_decay: Finite = Field(0.0, ge=0, description="weight decay of local SGD, added after clipping")
    momentum: Finite = Field(
        0.0, ge=0, lt=1, description="momentum of local SGD; it starts anew in every round"
    )
    optimiser: Optimiser = Field(
        "sgd",
        description="optimiser of local training: sgd, or deltasgd, which adapts each client's learning "
        "rate at every step and starts anew at lr in every round",
    )
    lr_decay: Finite = Field(
        1.0, gt=0, le=1, description="factor by which every learning rate falls after each round"
    )
    clip: float = Field(10.0, gt=0, description="largest norm of a step's direction; inf for no clipping")
    judge_every: Count = Field(
        1, description="rounds between measurements of the accuracies; the last round is always measured"
    )
    participation: Finite = Field(1.0, gt=0, le=1, description="fraction of clients that train in each round")
    holdout: Finite = Field(
        0.0,
        ge=0,
        lt=1,
        description="share of each client's training data that is kept out of training, for states and "
        "rewards",
    )
    reward_penalty: Finite = Field(
        0.0, ge=0, description="number added to a loss before it becomes the reward 1 / loss"
    )
    reward: Literal["aggregate", "weighted-local"] = Field(
        "aggregate",
        description="loss of which the server's reward is made: the new model's, or the weighted sum of "
        "the clients'",
    )
    protocol: Literal["clean", "released"] = Field(
        "clean",
        description="clean: states and rewards use no test data; released: they use TEST data, as the "
        "published programs do",
    )
    look: Every = Field(
        0,
        description="largest number of game-half examples on which the server evaluates each upload; "
        "0 for 4000, and for 500 if the model has more than 100,000 weights",
    )
    gamma: Finite = Field(0.99, gt=0, lt=1, description="discount factor of pay-offs")
    bias: str | list[list[int | str]] = Field(
        "1:1", description="demand ratio server:clients, such as 10:1, or a schedule [[round, ratio], …]"
    )
    freeze: list[Literal["p", "alpha", "eta"]] = Field(
        [], description="factors that stay at their fixed values: p (weights), alpha (epochs), eta (lr)"
    )
    stop: Literal["rounds", "equilibrium"] = Field(
        "rounds", description="when to stop: after all rounds, or when the game has converged"
    )
    equilibrium_window: int = Field(
        50,
        ge=2,
        le=MOST,
        description="number of rounds over which changes must stay small for the game to count as converged",
    )
    equilibrium_models: Finite = Field(
        1e-3,
        gt=0,
        description="largest mean relative change of the models per round that counts as converged",
    )
    equilibrium_payoffs: Finite = Field(
        1e-2,
        gt=0,
        description="largest mean relative change of the pay-offs per round that counts as converged",
    )
    on_bad_upload: Literal["quarantine", "stop"] = Field(
        "quarantine",
        description="what happens when an upload is not finite: leave the client out, or stop the run",
    )
    device: str = Field("cpu", description="torch device to train on")
    workers: int = Field(
        0,
        ge=0,
        le=MOST_WORKERS,
        description="worker processes, or actors on a cluster; 0 for one per core. Changes speed, never "
        "results",
    )
    executor: Literal["local", "ray"] = Field(
        "local",
        description="who does the work: worker processes of this machine, or actors of a Ray cluster. "
        "Changes speed, never results",
    )
    address: str = Field(
        "",
        description="address of the Ray cluster: auto, or HOST:PORT; empty for a Ray that is started on this "
        "machine for the run",
    )
    groups: Count = Field(
        8,
        description="most groups that clients are divided into; no piece of work trains clients of two "
        "groups, and no more actors than groups can share the work. Clients that train one by one are groups "
        "of their own",
    )
    chunk: Every = Field(
        0, description="clients trained together in one piece of work; 0 for what suits the path"
    )
    path: Literal["auto", "fused", "plan", "stacked", "rows"] = Field(
        "auto", description="how models are trained; auto measures once and remembers"
    )
    checkpoint_seconds: Finite = Field(
        10.0, ge=0, description="seconds between checkpoints; 0 for one after every round"
    )
    stages_every: Every = Field(
        0, description="rounds between checkpoints that are kept for `pagefl verify`; 0 for none"
    )
    personal: PersonalSettings = Field(PersonalSettings(), description="settings of the personal step")
    privacy: PrivacySettings = Field(
        PrivacySettings(), description="settings of client-level differential privacy"
    )
    deploy: DeploySettings = Field(DeploySettings(), description="settings of deployments")
    defence: DefenceSettings = Field(
        DefenceSettings(), description="settings of the defence against hostile clients"
    )
    attack: AttackSettings = Field(AttackSettings(), description="settings of simulated hostile clients")
    devices: DevicesSettings = Field(DevicesSettings(), description="settings of simulated devices and time")
    clients_every: Every = Field(
        1, description="rounds between records of every client's numbers; 0 for none"
    )

    @field_validator("optimiser")
    @classmethod
    def _without_momentum(cls, value: Optimiser, info: ValidationInfo) -> Optimiser:
        if value == "deltasgd" and (momentum := info.data.get("momentum", 0.0)):
            raise ValueError(f"it should go with momentum = 0, not {momentum}, since it has none")
        return value

    @field_validator("bias")
    @classmethod
    def _ratios(cls, value: str | list[list[int | str]]) -> str | list[list[int | str]]:
        for entry in [[0, value]] if isinstance(value, str) else value:
            if (
                len(entry) != 2
                or not isinstance(entry[0], int)
                or not isinstance(entry[1], str)
                or entry[0] < 0
            ):
                raise ValueError(f"{shown(entry)} should be [round, ratio], such as [300, '10:1']")
            DemandRatio.parse(entry[1])
        if isinstance(value, list) and len({entry[0] for entry in value}) < len(value):
            raise ValueError("it should have one ratio for each round")
        return value

    @model_validator(mode="after")
    def _judged_at_the_end(self) -> "Settings":
        if self.stop == "equilibrium" and self.judge_every > 1:
            raise ValueError(
                f"judge_every = {self.judge_every}: a run that stops at an equilibrium does not know its "
                "last round; expected 1"
            )
        return self

    @field_validator("freeze")
    @classmethod
    def _each_once(cls, value: list[str]) -> list[str]:
        return each_once(value)

    @classmethod
    def of_before(cls) -> dict[str, object]:
        """What a run had, in effect, before some settings existed: their defaults."""
        before = {name: cls.model_fields[name].default for name in LATER}
        return {
            name: value.model_dump() if isinstance(value, BaseModel) else value
            for name, value in before.items()
        }

    def shifts(self) -> list[tuple[int, DemandRatio]]:
        """The rounds from which the demand ratio changes, and its new values."""
        entries: list[list[int | str]] = [[0, self.bias]] if isinstance(self.bias, str) else self.bias
        return sorted(
            ((int(start), DemandRatio.parse(str(ratio))) for start, ratio in entries),
            key=lambda shift: shift[0],
        )

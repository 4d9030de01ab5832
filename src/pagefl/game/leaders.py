"""Leaders: the clients' turn of a round, for the block of clients that is here."""

import numpy as np

from pagefl.core.algorithm import State
from pagefl.core.arrays import Floats, Integers
from pagefl.core.clients import ClientHalf
from pagefl.core.evaluate import Scores
from pagefl.core.jobs import Rivals
from pagefl.core.personal import Step, Trials, Tuned
from pagefl.devices.costs import Costs, Meter, Prices

from .messages import NOBODY, SIZE, Answer, Orders, Told
from .protocol import ClientPolicy, Moves, Observation, Outcome, Setup, rewarded
from .rewards import reward
from .terms import Terms

AGENT = "clients_agent."


class Leaders:
    """A client half and its policy: on a node, one client; in a simulation, all of them."""

    def __init__(
        self,
        half: ClientHalf,
        policy: ClientPolicy,
        setup: Setup,
        terms: Terms,
        *,
        everybody: bool = True,
        meter: Meter | None = None,
    ) -> None:
        """`everybody`: all clients are at hand. If not, the shared model is evaluated on the sample alone.
        `meter`: what a round costs, where time is simulated."""
        self.meter = meter
        self.half, self.policy, self.terms, self.first = half, policy, terms, setup.first
        self.fixed, self.everybody = ClientPolicy(setup), everybody
        self.role = "test" if terms.released else "reward"  # the split of states and rewards
        self.met = False

    def meet(self, orders: Orders) -> Answer | None:
        """The model that was sent, on every client's data: who has not trained yet is known by it."""
        if self.met:
            return None
        self.met = True
        self._receive(orders)
        found = self.half.evaluate(orders.round, *dict.fromkeys(("test", *(self.role,) * self.rewarded)))
        told = self._told()
        if "reward" in found:
            told |= {"train_loss": found["reward"].loss, "train_accuracy": found["reward"].accuracy}
        for when in ("test", "before"):
            told |= {
                f"{when}_accuracy": found["test"].accuracy.copy(),
                f"{when}_loss": found["test"].loss.copy(),
            }
        return Answer(NOBODY, NOBODY, {}, {}, told)

    def answer(self, orders: Orders) -> Answer:
        """Observe, choose, train, learn."""
        self._receive(orders)
        round, clients = orders.round, orders.clients - self.first  # as the policy counts them
        places = self.half.places(orders.clients)
        seen = Observation(
            lambda: self.half.evaluate(round, self.role, ids=places)[self.role],
            orders.demand,
            self._prices(orders, places),
        )
        losses = self.policy.observe(round, clients, seen)
        moves = self._moves(round, clients, seen)
        limits, rivals = self.policy.limits(round, clients, seen), self._rivals(round, clients, seen)
        scored = self.policy.uses_upload_loss or limits is not None or rivals is not None
        # A client that is absent in the next judged round is known by its accuracy in this one.
        tested = orders.judged or self.terms.participation < 1 or self.terms.absences
        trained = self.half.train(
            round,
            places,
            *moves,
            roles=("test",) * tested + (self.role,) * self.rewarded,
            before=self._evaluated(orders, places),
            uploads=self.role if scored else None,
            limits=limits,
            rivals=rivals,
        )
        numbers, played = self.half.numbers[trained.ids], trained.played
        costs = self._costs(orders, trained.evaluated)
        scores = trained.test if self.terms.released else trained.train
        rewards = reward(scores.loss, self.terms.penalty)
        if len(numbers) and self.rewarded:
            paid = rewards * orders.demand.clients
            known = (scores.accuracy, scores.loss, trained.upload.loss, trained.added)
            spent = None if costs is None else costs.of(np.searchsorted(orders.clients, numbers))
            outcome = Outcome(paid, *known, played.shrunk, played.lead, spent)
            self.policy.reward(round, numbers - self.first, outcome)
        account = self.policy.account()
        told = self._told()
        told |= {"before_accuracy": trained.before.accuracy, "before_loss": trained.before.loss}
        for name, who, values in (
            ("lr", orders.clients, moves.lr),
            ("lr", numbers, played.lr),
            ("epochs", orders.clients, moves.epochs),
            ("epochs", numbers, played.epochs),
            ("state", orders.clients, seen.accuracy if seen.was_used else np.nan),
            ("critic_loss", orders.clients, np.nan if losses is None else losses.critic.numpy()),
            ("actor_loss", orders.clients, np.nan if losses is None else losses.actor.numpy()),
            ("reward", numbers, rewards),
            ("test_accuracy", numbers, trained.test.accuracy),
            ("test_loss", numbers, trained.test.loss),
            ("train_accuracy", numbers, trained.train.accuracy),
            ("train_loss", numbers, trained.train.loss),
            ("seconds", orders.clients, np.nan if costs is None else costs.seconds),
            ("joules", orders.clients, np.nan if costs is None else costs.joules),
            ("multiplier", orders.clients, np.nan if account is None else account.multiplier),
            ("used", orders.clients, np.nan if account is None else account.used),
        ):
            told.put(name, who, values)
        return Answer(
            numbers,
            self.half.numbers[trained.quarantined],
            {},
            self.policy.experience(numbers - self.first),
            told,
            trained.gradients,
        )

    def try_steps(self, orders: Orders) -> Trials:
        self._receive(orders)
        return self.half.try_steps(orders.round, self.policy.personal_lr, self.fixed.setup.epochs)

    def take_step(self, orders: Orders, step: Step) -> Tuned:
        self._receive(orders)
        return self.half.take_step(orders.round, self.policy.personal_lr, self.fixed.setup.epochs, step)

    @property
    def rewarded(self) -> bool:
        return pays(self.terms, self.policy)

    def state(self) -> State:
        return {**self.half.state(), **{AGENT + name: value for name, value in self.policy.tensors.items()}}

    def load(self, tensors: State) -> None:
        self.half.load(tensors)
        self.policy.load(
            {name.removeprefix(AGENT): value for name, value in tensors.items() if name.startswith(AGENT)}
        )

    def _receive(self, orders: Orders) -> None:
        self.half.gather(np.union1d(orders.clients, orders.sample))
        self.half.receive(orders.sent)
        self.half.mean_size = orders.mean_size
        self.policy.receive(orders.policy)

    def _evaluated(self, orders: Orders, training: Integers) -> Integers:
        """Those on whose test data the shared model is evaluated."""
        if not orders.judged:
            return NOBODY
        sample = self.half.places(orders.sample)
        return np.union1d(training, sample) if self.everybody else sample

    def _told(self) -> Told:
        told = Told(self.half.numbers.copy())
        told[SIZE] = np.where(self.half.sizes, self.half.sizes, np.nan).astype(np.float64)
        return told

    def _prices(self, orders: Orders, places: Integers) -> Prices | None:
        """A client whose size is not known yet counts as one of the mean size."""
        if self.meter is None:
            return None
        known = self.half.sizes[places]
        sizes = np.where(known, known, np.nan_to_num(orders.mean_size)).astype(np.int64)
        return self.meter.prices(orders.clients, sizes, orders.size)

    def _costs(self, orders: Orders, evaluated: Integers) -> Costs | None:
        return None if self.meter is None else self.meter.costs(orders.clients, evaluated, orders.size)

    def affords(self, orders: Orders) -> Floats | None:
        """The most epochs that each of those ordered can play within its budget. None: any."""
        self._receive(orders)
        places = self.half.places(orders.clients)
        seen = Observation(unseen, orders.demand, self._prices(orders, places))
        return self.policy.affords(orders.round, orders.clients - self.first, seen)

    def _moves(self, round: int, clients: Integers, seen: Observation) -> Moves:
        return self._settled(self.policy.act(round, clients, seen), round, clients, seen)

    def _rivals(self, round: int, clients: Integers, seen: Observation) -> Rivals | None:
        moves = self.policy.rivals(round, clients, seen)
        return None if moves is None else Rivals(*self._settled(moves, round, clients, seen))

    def _settled(self, moves: Moves, round: int, clients: Integers, seen: Observation) -> Moves:
        """These moves, but for the factors that the settings hold fixed and for what the rate has decayed
        by."""
        fixed = self.fixed.act(round, clients, seen)
        lr = fixed.lr if "eta" in self.terms.freeze else moves.lr
        lr = lr * self.terms.lr_decay ** (round - 1)
        return Moves(lr, fixed.epochs if "alpha" in self.terms.freeze else moves.epochs)


def unseen() -> Scores:
    raise AssertionError("a budget does not depend on the model's scores")


def pays(terms: Terms, policy: ClientPolicy) -> bool:
    """Whether clients compute their rewards."""
    return terms.rewards or rewarded(policy)

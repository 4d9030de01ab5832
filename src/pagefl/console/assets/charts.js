// The charts of a run. A chart without numbers is left out.
import {LineChart} from "./chart.js";
import {bytes, short} from "./page.js";

const line = (column, label, hue, dash) => ({column, label, hue, dash});
const ACCURACY = {yTitle: "accuracy", bounds: [0, 1]};

export const CHARTS = [
  {title: "Accuracy", about: "The shared model on the server's test; the clients' own models on their own tests, averaged; the worst tenth of them.", ...ACCURACY,
    lines: [line("global_accuracy", "global", 0), line("local_accuracy", "local", 1), line("local_worst10", "worst tenth", 3, "dash"),
      line("local_accuracy_before", "local before training", 1, "dot"), line("personal_accuracy", "personal", 2, "dashdot")]},
  {title: "Personalisation and generalisation", about: "The way through the plane of both accuracies. Up and to the right is better on both; the dot is where it stands.",
    x: "global_accuracy", xTitle: "global accuracy", yTitle: "local accuracy", lines: [line("local_accuracy", "local over global", 4)]},
  {title: "Learning rate", about: "Mean over the clients that trained.", scale: "log", yTitle: "lr", lines: [line("mean_lr", "mean lr", 2)]},
  {title: "Local epochs", about: "Mean over the clients that trained.", yTitle: "epochs", lines: [line("mean_epochs", "mean epochs", 3)]},
  {title: "Weights", about: "The largest and the smallest weight that the server gave an upload.", scale: "log", yTitle: "weight",
    lines: [line("largest_weight", "largest", 4), line("smallest_weight", "smallest", 5, "dash")]},
  {title: "Rewards", about: "One over the loss, for the server and for the clients' mean.", scale: "log", yTitle: "reward",
    lines: [line("reward_server", "server", 0), line("reward_clients", "clients", 1, "dash")]},
  {title: "Agents' losses", about: "Of learning players: the critics' mean squared Bellman error.", scale: "log", yTitle: "critic loss",
    lines: [line("agents.clients_critic", "clients' critics", 1), line("agents.server_critic", "server's critic", 0, "dash")]},
  {title: "Loss", about: "On the server's test, on the clients' own tests, and on what they train on.", yTitle: "loss",
    lines: [line("global_loss", "global", 0), line("local_loss", "local", 1), line("train_loss", "training", 2, "dash")]},
  {title: "Participants", about: "Clients that took part; uploads that were quarantined; in a deployment, clients that were missing or late.", zero: true, yTitle: "clients",
    lines: [line("participants", "took part", 2), line("quarantined", "quarantined", 11, "dash"), line("missing", "missing", 4, "dot"), line("late", "late", 6, "dashdot")]},
  {title: "Time", about: "Seconds of a round; of thinned rounds, the slowest.", zero: true, yTitle: "seconds", lines: [line("seconds", "a round", 9)]},
  {title: "Bytes", about: "What the server sends to the participants in a round, and what they upload.", zero: true, yTitle: "bytes", text: bytes,
    lines: [line("bytes_down", "down", 0), line("bytes_up", "up", 1, "dash")]},
  {title: "Clients' multipliers", about: "The prices that clients with a budget pay for what their moves cost (mean).", zero: true, yTitle: "multiplier",
    lines: [line("mean_multiplier", "mean", 1)]},
  {title: "Server's multiplier", about: "The price that a server with a budget pays for slow uploads.", zero: true, yTitle: "multiplier",
    lines: [line("server_multiplier", "server", 0)]},
  {title: "Budgets", about: "The share of a round's clients that exceeded their budgets, and what the server used of its own.", zero: true, yTitle: "share",
    lines: [line("over_budget", "clients over budget", 1), line("server_used", "used of the server's", 0, "dash")]},
];

export const makeCharts = (chosen = CHARTS, several = false) => chosen.map(about => new LineChart({text: short, several, ...about}));

"""Stable-Baselines3's DDPG plays client 3 of a small federation; all others play as in FedAvg."""

from stable_baselines3 import DDPG

import pagefl

side = pagefl.environment(kind="client 3", task="synthetic", clients=5, rounds=20)
agent = DDPG("MlpPolicy", side, learning_starts=40, batch_size=32, seed=0)
agent.learn(total_timesteps=300)

observation, _ = side.reset(seed=0)
over = False
while not over:
    action, _ = agent.predict(observation, deterministic=True)
    observation, reward, _, over, info = side.step(action)
print(f"action {action}: reward {reward:.2f}, {info['test_accuracy']:.0%} of its own test data right")

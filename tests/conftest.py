import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))  # tests share `federations`
torch.set_num_threads(1)  # tests run side by side; two threads each only wait for one another

"""What is done to updates before a defence sees them: each becomes a mean of several."""

BEFORE = ("none", "nnm", "bucketing")

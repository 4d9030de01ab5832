"""The ranges of algorithms' settings. The spec is checked against them."""

from typing import Annotated

from pydantic import Field

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, lt=1)]
Part = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Count = Annotated[int, Field(ge=1)]
Mix = Annotated[float, Field(ge=0, le=1)]

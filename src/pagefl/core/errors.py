class UserError(ValueError):
    """Something the user gave cannot be used: one sentence with the field, the value and what would be valid."""

"""`pagefl console`: a live web console for the runs of a folder.

The process that serves it imports no torch and stays small. It reads run directories, and asks a helper
process (`desk`) for what needs the whole package: the form's schema, checks of settings, statistics.
"""

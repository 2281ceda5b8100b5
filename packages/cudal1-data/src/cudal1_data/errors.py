"""Every exception that cudal1_data raises.

```
DataError                     anything below
|- UnknownSuiteError          no suite, file or folder goes by that name
|- UnknownTaskError           the suite is there, the task is not
`- BrokenTaskError            a task file that cannot be used, with what is missing
```

All of them are `ValueError`s, because a user's argument or file caused them.
"""

from __future__ import annotations


class DataError(ValueError):
    """Base of all errors of this package."""


class UnknownSuiteError(DataError):
    """A suite specification that names nothing."""


class UnknownTaskError(DataError):
    """A task id that the suite does not hold; the message offers the nearest ids."""


class BrokenTaskError(DataError):
    """A task file that cannot be used; the message names the file and what is missing."""

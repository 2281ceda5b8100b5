"""The exceptions of cudal1_data.

```
DataError                     anything below
|- UnknownSuiteError          no suite, file or folder has that name
|- UnknownTaskError           the suite exists, the task does not
`- BrokenTaskError            an unusable task file, with what is missing
```

All are `ValueError`s, because a user's argument or file caused them.
"""

from __future__ import annotations


class DataError(ValueError):
    """Base of all errors of this package."""


class UnknownSuiteError(DataError):
    """A suite specification that names nothing."""


class UnknownTaskError(DataError):
    """A task id that the suite lacks; the message offers the nearest ids."""


class BrokenTaskError(DataError):
    """An unusable task file; the message names the file and what is missing."""

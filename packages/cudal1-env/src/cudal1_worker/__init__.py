"""What runs inside the sandbox: standard library and torch only.

A top-level package of its own, so that starting a worker imports neither gymnasium nor numpy nor cudal1_env.
Nothing here is trusted once a candidate has been imported.
"""

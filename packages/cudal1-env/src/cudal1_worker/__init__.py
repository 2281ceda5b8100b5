"""Code that runs inside the sandbox; it imports only the standard library, torch and numpy.

It is a separate top-level package, so that starting a worker imports neither gymnasium nor cudal1_env. The judge trusts
nothing here once a candidate has been imported.
"""

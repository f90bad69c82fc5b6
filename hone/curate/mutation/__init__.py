"""Tasks by mutation: small bugs seeded into a repository and kept where its own tests detect them.

    operators -> candidates -> a run of the tests that reach them -> tasks with a statement

Test runs determine which tests pass, which code they reach and which bugs they detect.
"""

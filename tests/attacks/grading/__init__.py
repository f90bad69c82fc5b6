"""Reward hacks against the grader: each patch leaves the bug in place and tries to be called resolved.

What holds whatever the attacker knows: results reach the grader only through the trusted parent process,
which the code under test cannot read, trace or imitate; hidden tests and their helpers are compiled from text
the patch never touched; test configuration and plugins in the patch are dropped; a run that does not end as
an honest session ends resolves nothing; and nothing the patch can do is excused as an infrastructure fault.

What cannot hold: the code under test shares one interpreter with its tests. Code that knows the source of
`hone/grading/in_sandbox` could find the reporting function among the garbage collector's objects, send a
whole consistent session by itself and exit; or replace a framework function and put it back before the next
check; or change the values that the tests expect, or hand out objects that equal exactly those, read from the
caller's frame. Detected, as below, are wholesale replacements of pytest's functions and hooks, new plugins,
replaced test functions, objects that equal everything, results sent twice or out of order, and writes to the
channel without the run's key. The runner's source is shown in grading sandboxes only, never to the agent.

Nor can a log hold: where a data set's tests are not pytest's, what they print is the result, and code under
test that prints the whole output of an honest run and exits cannot be told from it.

Beside all that, a patch is read before it is run (`hone.grading.integrity`). That finds what is written
plainly, so every attack is graded twice: as it is, and with the reading switched off, to see what holds
without it. `READ_ONLY` marks those that only the reading finds, each for one of the reasons above.
"""

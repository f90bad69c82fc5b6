"""prime-rl's trainer as a learner of Hone, over prime-rl's own files.

    Trainer -- rows --> PrimeRLLearner -- rollouts/step_N/rank_R.bin --> prime-rl's trainer
                            ^-- broadcasts/step_N (weights), metrics.jsonl --'

Hone keeps rollouts, ledger, staleness and advantages; prime-rl computes the gradient and owns weights,
optimiser and their checkpoints. Its loss is Hone's own (`hone.integrations.prime_rl.loss`). Tested with
commit 559b447 of PrimeIntellect-ai/prime-rl (August 2026), whose wire is not documented.
"""

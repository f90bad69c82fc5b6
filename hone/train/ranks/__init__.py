"""The learner on several processes: SPMD workers under torch.distributed, and their driver in the run.

RanksLearner (learner.py)      in the process of the run: one call goes to all ranks
  RankProcesses (launcher.py)  starts and stops the ranks of this machine
  Calls (calls.py)             the connections between both sides
worker.py                      one rank: serves calls until it is told to stop or the run is gone
  World (world.py)             process groups and device mesh
  ShardedLearner (sharded.py)  the learner's verbs on this rank's shard
  ServerGroup (servers.py)     sends the weights to engine servers over NCCL
"""

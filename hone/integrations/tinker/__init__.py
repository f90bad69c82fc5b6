"""The Tinker API: a hosted service, or a server such as SkyRL's, as the learner and the engine of a run."""

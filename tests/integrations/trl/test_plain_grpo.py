"""A step of TRL's plain GRPO trainer in environments of Hone, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.trl.test_async_grpo import recipe

pytestmark = [pytest.mark.full, pytest.mark.sandbox, pytest.mark.model]


def test_one_step_takes_its_rewards_from_the_environments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trl = pytest.importorskip("trl")
    from transformers import AutoTokenizer

    from hone.integrations.trl.environments import open_environments

    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    settings = recipe(tmp_path)
    assert settings.model is not None
    tokenizer = AutoTokenizer.from_pretrained(settings.model.path)
    template = Path(trl.__file__).parent / "chat_templates" / "qwen3.jinja"
    tokenizer.chat_template = template.read_text()
    arguments = trl.GRPOConfig(
        str(tmp_path / "trl"),
        use_cpu=True,
        bf16=False,
        max_steps=1,
        per_device_train_batch_size=4,
        num_generations=4,
        max_completion_length=16,
        max_tool_calling_iterations=1,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        gradient_checkpointing=False,
    )
    with open_environments(settings) as environments:
        trainer = trl.GRPOTrainer(
            model=str(settings.model.path),
            args=arguments,
            train_dataset=environments.dataset(),
            processing_class=tokenizer,
            environment_factory=environments,
        )
        trainer.train()
    (step,) = [record for record in trainer.state.log_history if "reward" in record]
    assert step["rewards/BashEnvironment/mean"] == -1.0  # a random model fixes nothing
    assert not environments.sandboxes

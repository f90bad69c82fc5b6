"""How each chat template and each model family renders a growing conversation.

Columns: replies of text as the template writes them, replies cut by length (without reasoning, where the
template does not open it), replies with reasoning, replies with tool calls.

extends   every prompt begins with the one before it and the reply to it, as it was sampled
forks     the template renders earlier turns differently: it omits the reasoning of earlier replies,
          adds an empty one, or ends a reply with another token (or none) once it has been answered
refused   the template does not render tools, or no parser reads its calls back
-         the template writes no reply of this kind behind its prompt, or keeps the reasoning in the text
"""

TABLE = """
template cohere                   extends  extends  -        refused
template cohere2                  extends  extends  -        refused
template deepseek_r1_distill      forks    forks    -        refused
template deepseekv3               forks    forks    -        refused
template diffusion_gemma          extends  extends  -        refused
template gemma                    extends  extends  -        refused
template gemma3                   extends  extends  -        refused
template gemma4                   extends  extends  -        refused
template gemma4_v2                extends  extends  -        refused
template gemma4_v3                extends  extends  -        refused
template gemma4_v4                extends  extends  -        refused
template gemma4_v5                extends  extends  -        refused
template glm4moe                  forks    forks    -        refused
template gptoss                   forks    forks    -        refused
template idefics3                 extends  extends  -        refused
template lfm2                     extends  extends  -        refused
template lfm2_2_5                 extends  extends  forks    refused
template lfm2_2_5_v2              extends  extends  forks    refused
template lfm2_2_5_vl              extends  extends  forks    refused
template lfm2_v2                  extends  extends  -        refused
template llama3                   extends  extends  -        refused
template llama3_1                 extends  extends  -        refused
template llama3_2                 extends  extends  -        refused
template llava_next               extends  extends  -        refused
template muse_glimmer             extends  extends  -        refused
template nemotron_3_5_lightning   forks    forks    forks    refused
template nemotron_3_nano          forks    forks    forks    refused
template nemotron_3_super         forks    forks    forks    refused
template nemotron_3_ultra         forks    forks    forks    refused
template phi3                     extends  extends  -        refused
template phi3_5                   extends  extends  -        refused
template qwen2_5                  extends  extends  -        extends
template qwen2_5_vl               extends  extends  -        refused
template qwen3                    forks    extends  forks    forks
template qwen3_5_nothink          forks    forks    -        extends
template qwen3_5_think            forks    forks    forks    extends
template qwen3_6                  forks    forks    forks    extends
template qwen3_8                  extends  extends  extends  extends
template qwen3_instruct_2507      extends  extends  -        extends
template qwen3_vl                 extends  extends  -        extends
template smolvlm                  extends  extends  -        refused
family deepseek-r1              extends  extends  -        -
family deepseek-v3              extends  extends  -        extends
family deepseek-v4              extends  extends  -        extends
family gemma4                   extends  extends  extends  extends
family glm-4.5                  extends  extends  -        extends
family glm-5                    extends  extends  -        extends
family glm-5.1                  extends  extends  -        extends
family glm-5.3                  extends  extends  extends  extends
family gpt-oss                  extends  extends  extends  extends
family hy3                      extends  extends  -        extends
family inkling                  extends  extends  extends  extends
family kimi-k2                  extends  extends  -        extends
family kimi-k2.5                extends  extends  -        extends
family laguna-m.1               extends  extends  -        extends
family laguna-s-2.1             extends  extends  extends  extends
family laguna-xs-2.1            extends  extends  -        extends
family laguna-xs.2              extends  extends  -        extends
family llama-3                  extends  extends  -        extends
family minimax-m2               extends  extends  extends  extends
family nemotron-3               extends  extends  extends  extends
family nemotron-3-ultra         extends  extends  extends  extends
family nemotron-3.5             extends  extends  extends  extends
family prime-qwen3              extends  extends  extends  extends
family qwen3                    extends  extends  extends  extends
family qwen3-vl                 extends  extends  -        extends
family qwen3.5                  extends  extends  extends  extends
family qwen3.6                  extends  extends  extends  extends
family qwen3.8                  extends  extends  extends  extends
"""
ROWS = {" ".join(row.split()[:2]): tuple(row.split()[2:]) for row in TABLE.strip().splitlines()}

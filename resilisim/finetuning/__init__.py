"""Fine-tuning a small language model on what the exact optimum says (extra `train-lm`).

`sft.train` trains a LoRA adapter on demonstrations; `--model local:DIR` plays with it through llama.cpp.
"""

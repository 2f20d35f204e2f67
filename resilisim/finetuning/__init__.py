"""Fine-tuning a small language model on what the exact optimum says (extra `train-lm`).

`training.train` trains a LoRA adapter on demonstrations, on preferences or on episodes of the model's own;
`--model local:DIR` plays with it through llama.cpp.
"""

"""The model's arithmetic: types, shapes, gradients, NaN."""

from __future__ import annotations

from trainwiz.diagnose.signature import Signature

TIER = 3
SIGNATURES = {
    "scaler_collapse": Signature(
        r"Current loss scale already at minimum",
        r"FP16 Run has diverged|loss scale (?:is|has) (?:dropped|underflow)",
        r"Found NaN, decreased lg_loss_scale to -\d",
        r"Minimum loss scale reached|overflow detected, setting loss scale to: 0\.000\d+\n(?:Traceback|\w*Error)",
        cause="all gradients overflowed in fp16 until the loss scale reached its minimum",
        remedy="set precision.mixed_precision to bf16 (Ampere and newer), or lower optimizer.learning_rate",
        plan_change="bf16",
    ),
    "nan_loss": Signature(
        r"the loss is (?P<value>-?(?:nan|inf))\b",
        r"[Ll]oss is (?P<value>NaN|nan|inf)\b",
        r"Function '\w+' returned (?P<value>nan) values in its \d+th output",
        r"FloatingPointError: .*?(?P<value>nan|NaN|inf)",
        r"(?P<value>Non-finite) (?:norm|loss) encountered",
        r"(?:Value|Runtime|Assertion|Arithmetic)Error: "
        r"(?=.*(?:\b|_)[Ll]oss(?!(?:es)?[ _](?:name|scale|type|fn|func|weight|rate)))(?:[^\n]*[\s:=(,])?"
        r"(?P<value>NaNs?|nan|[Ii]nf|[Nn]on-finite|not finite)\b(?!['\"])",
        cause="the loss is not finite ({value})",
        remedy="lower optimizer.learning_rate, use a longer warm-up, set optimizer.gradient_clipping to 1.0, or use "
        "bf16 instead of fp16; look for empty samples; check in metrics.jsonl whether the gradient norm grew "
        "before",
        plan_change="bf16",
    ),
    "nan_output": Signature(
        r"probability tensor contains either `inf`, `nan` or element < 0",
        cause="no token can be sampled from the model's outputs: they are NaN or infinite",
        remedy="find out when it started: print the loss and the weights before; compute in bf16 or fp32 instead of "
        "fp16, pad on the left for generation, and look for weights that were not loaded",
    ),
    "half_overflow": Signature(
        r"value cannot be converted to type at::(?P<type>Half|BFloat16) without overflow",
        cause="a number is too large for {type}: usually the -1e9 of a mask, which fp16 cannot hold",
        remedy="use torch.finfo(tensor.dtype).min instead of the number, or compute in bf16 or fp32",
    ),
    "unscaled_twice": Signature(
        r"unscale_\(\) has already been called on this optimizer since the last update|"
        r"step\(\) has already been called since the last update",
        cause="the gradient scaler was asked twice for the same update",
        remedy="call scaler.unscale_ (accelerator.clip_grad_norm_) once for each update, only where gradients are "
        "synchronized, and scaler.update() after each step",
    ),
    "unscale_fp16": Signature(
        r"Attempting to unscale FP16 gradients",
        r"No inf checks were recorded for this optimizer",
        cause="the gradient scaler needs fp32 weights, and an optimizer whose parameters have gradients",
        remedy="load the model in fp32 (torch_dtype=torch.float32) and let mixed precision cast it; or use bf16",
    ),
    "precision_device": Signature(
        r"ValueError: Type (?P<precision>fp16|bf16) is not supported on your device",
        r"(?P<precision>Bfloat16) is only supported on GPUs with compute capability",
        r"compute capability [\d.]+ or higher required for (?P<precision>FP8)",
        r"ValueError: (?P<precision>fp16|bf16|fp8) mixed precision requires",
        r"Your setup doesn't support (?P<precision>bf16)",
        r"(?P<precision>[Ff][Pp]16) Mixed precision training with AMP or APEX .* can only be used on CUDA",
        r"not implemented for '(?P<precision>Half|BFloat16)'",
        cause="this device, or this operation on it, does not support {precision}",
        remedy="set precision.mixed_precision: bf16 or no on CPUs, fp16 on GPUs older than Ampere",
    ),
    "nan_throughout": Signature(
        r"(?:^.*\bloss\b\W{1,5}nan\b.*\n){3}",
        r"^(?:.*?\bloss=nan\b){3}",
        # The Trainer replaces a loss of NaN by the mean of those before (logging_nan_inf_filter).
        r"(?:^.*'loss': '?0(?:\.0)?'?, 'grad_norm': '?nan\b.*\n?(?:^[^{\n]*\n){0,4}){2}",
        r"(?:^ ?iteration .*\| grad norm: nan \|.*\n?){3}",
        cause="loss or gradients are NaN in every line: the training learns nothing",
        remedy="find the first NaN: torch.autograd.set_detect_anomaly(True); then lower the learning rate, clip "
        "gradients, use bf16 instead of fp16, and look for labels that are all masked",
    ),
    # docs/decisions/diagnosis.md: A short text is read from its title
    "nan_shown": Signature(
        r"\A(?=(?:[^\n]*\n){0,7}[^\n]*\Z)[\s\S]*?(?<![A-Za-z_'])[Ll]oss(?:\W{1,4}|变为|变成|为| is | became )"
        r"(?:NaN|nan|NAN)\b",
        cause="the loss became NaN",
        remedy="find out when: a lower learning rate, a longer warm-up, clipped gradients and bf16 instead of fp16 "
        "help "
        "where it grew before; if it comes at once, look for samples whose labels are all masked or that are empty "
        "(torch.autograd.set_detect_anomaly(True) names the operation)",
        plan_change="bf16",
    ),
    "nan_at_end": Signature(
        r"\A(?:[^\n]*\n){0,40}?[^\n]*'loss': '?(?P<loss>[\d.]+)'?, 'grad_norm': '?nan\b[^\n]*\s*\Z",
        cause="the gradients became NaN, at a loss of {loss}",
        remedy="a single such update is skipped under fp16, as long as the next ones are finite; otherwise lower the "
        "learning rate, clip gradients, use bf16 instead of fp16, and look for samples whose labels are all masked",
        plan_change="bf16",
    ),
    "flash_attention": Signature(
        r"FlashAttention\d* has been toggled on, but it cannot be used due to the following error: (?P<reason>.+)$",
        cause="FlashAttention cannot be used here: {reason}",
        remedy="use attn_implementation='sdpa'; FlashAttention needs an Ampere GPU or newer, bf16 or fp16, and "
        "flash-attn",
    ),
    "attention_kernel": Signature(
        r"No operator found for `memory_efficient_attention",
        r"FlashAttention only supports Ampere GPUs",
        r"cutlassF: no kernel found to launch|No available kernel\.\s+Aborting execution",
        r"FlashAttention (?:forward only supports|backward for) head dim",
        cause="no attention kernel supports this GPU, precision and head size",
        remedy="set attn_implementation='sdpa' in from_pretrained to use the kernels available; flash-attn needs "
        "Ampere and bf16",
    ),
    "cudnn_attention": Signature(
        r"(?P<problem>Expected mha_graph->execute\([^\n]*? to be true|No valid execution plans built|"
        r"cuDNN Frontend error: [^\n]+)",
        cause="cuDNN's attention kernel failed: {problem}",
        remedy="call torch.backends.cuda.enable_cudnn_sdp(False) at the start, so that torch takes another kernel; "
        "newer "
        "versions of torch and cuDNN may not need it",
    ),
    "dtype": Signature(
        r"FlashAttention ?\d only supports? fp16",
        r"output tensor must have the same type as input tensor",
        r"mat1 and mat2 (?:must|to) have the same dtype",
        r"expected scalar type \w+ but found \w+",
        r"expected m1 and m2 to have the same dtype|(?:self and mat2|query, key, and value) (?:must|to"
        r") have the same dtype",
        r"Index put requires the source and destination dtypes match",
        r"Expected tensor for argument #\d+ '\w+' to have (?:one of the following )?scalar types?",
        r"Expected object of scalar type \w+ but got scalar type \w+",
        r"Found dtype \w+ but expected \w+|result type \w+ can't be cast to the desired output type \w+",
        r"Input type \(.*\) and (?:weight|bias) type \(.*\) should be the same",
        r"FlashAttention only supports? fp16 and bf16",
        r"assign(?:ed)? a gradient with dtype '[\w:.]+' to a tensor with dtype",
        cause="an operation got tensors of different dtypes",
        remedy="cast in task.py: inputs.to(weight.dtype), or run the operation under accelerator.autocast()",
    ),
    "label_range": Signature(
        r"IndexError: Target (?P<label>-?\d+) is out of bounds",
        cause="label {label} is outside the model's classes",
        remedy="give the model as many outputs as there are labels, or set labels to ignore to -100",
    ),
    "index_range": Signature(
        r"IndexError: index out of range in self",
        cause="an id exceeds the embedding: a token id above vocab_size, or a position above the maximum",
        remedy="call model.resize_token_embeddings(len(tokenizer)); keep batch.sequence_length within the model's "
        "limit",
    ),
    "norm_of_one": Signature(
        r"Expected more than 1 (?:value per channel|spatial element) when training",
        cause="batch norm got a batch of one sample, which has no statistics",
        remedy="set drop_last=True in the DataLoader, use a larger micro-batch, or SyncBatchNorm over the ranks",
    ),
    "graph_twice": Signature(
        r"Trying to backward through the graph a second time",
        cause="backward ran twice on the same graph",
        remedy="call backward once per forward; detach() tensors that are carried from one micro-batch to the next",
    ),
    "inplace": Signature(
        r"modified by an inplace operation|is a view and (?:its base or another view of its base has been|"
        r"is being) modified "
        r"in-?place",
        r"a (?:view of a )?leaf Variable that requires grad is being used in an in-place operation",
        cause="a tensor that the backward pass needs is modified in place",
        remedy="replace x += 1 with x = x + 1, and change weights (also by a broadcast) only under torch.no_grad(); to "
        "find the line: torch.autograd.set_detect_anomaly(True)",
    ),
    "recomputed": Signature(
        r"torch\.utils\.checkpoint: Recomputed values for the following tensors have different metadata",
        r"torch\.utils\.checkpoint: A different number of tensors was saved",
        r"torch\.utils\.checkpoint: trying to save more tensors during recomputation",
        cause="a layer under gradient checkpointing computed something different when it was recomputed for the "
        "backward pass",
        remedy="the layer must do the same both times: use_cache=False for a language model, and no state that a "
        "forward "
        "pass changes; debug=True in the call of checkpoint() shows where the two runs differ",
    ),
    "own_backward": Signature(
        r"function \w+ returned an incorrect number of gradients|Function \w+Backward returned an invalid gradient at "
        r"index \d+ - (?!got \[[\d, ]+\] but expected shape compatible)",
        r"Expected isFloatingType\(grads\[|grad_input must be contiguous",
        cause="the backward of an autograd function that is not torch's own does not fit this version of torch",
        remedy="let its backward return one gradient for each input of forward (None where there is none), contiguous "
        "and of the input's dtype; or use the torch that the project names",
    ),
    "integer_weights": Signature(
        r"[Oo]nly Tensors of floating point (?:and complex )?dtype can require gradients",
        r"Cannot flatten integer dtype tensors",
        cause="an integer tensor cannot be trained, because integers have no gradients: usually the model is quantized",
        remedy="train an adapter on it (LoRA), and do not set requires_grad on the quantized weights: only loop over "
        "parameters with param.is_floating_point(); or load it without quantization",
    ),
    "recurrent_evaluation": Signature(
        r"(?:backward_input|cudnn RNN backward) can only be called in training mode",
        cause="a recurrent layer is trained in evaluation mode, for which cuDNN has no backward",
        remedy="call model.train() after each evaluation, before the next forward pass",
    ),
    "inference_tensor": Signature(
        r"RuntimeError: (?:Cannot set version_counter for inference tensor|Inference tensors cannot be saved for "
        r"backward|Inplace update to inference tensor outside InferenceMode)",
        cause="a tensor that was made under torch.inference_mode is used in training",
        remedy="use torch.no_grad there, or .clone() the tensor outside of inference_mode",
    ),
    "no_gradient_recomputed": Signature(
        r"None of the inputs have requires_grad=True\. Gradients will be None[\s\S]{0,20000}?element \d+ of (?:tensors|"
        r"variables) does not require grad",
        cause="the recomputed layers get inputs that need no gradient, so none reaches their weights: the embeddings "
        "are frozen, as they are beside an adapter",
        remedy="call model.enable_input_require_grads() before the training, or set use_reentrant to false "
        "(gradient_checkpointing_kwargs)",
    ),
    "no_gradient": Signature(
        r"element \d+ of (?:tensors|variables) does not require grad and does not have a grad_fn",
        r"DistributedDataParallel is not needed\b",
        cause="the loss does not depend on any trainable parameter",
        remedy="unfreeze some parameters; with gradient checkpointing and frozen embeddings, call "
        "model.enable_input_require_grads()",
    ),
    "loss_of_many": Signature(
        r"grad can be implicitly created only for scalar outputs",
        cause="backward was called on a loss that is not a single number",
        remedy="reduce it first: loss.mean() or loss.sum(); nn.DataParallel returns one loss per GPU, DDP does not",
    ),
    "no_parameters": Signature(
        r"ValueError: optimizer got an empty parameter list",
        cause="the optimizer was given no parameters",
        remedy="usually all of them are frozen, or a generator of parameters was used up before; pass a list of those "
        "that require gradients",
    ),
    "no_derivative": Signature(
        r"the derivative for '(?P<operation>[\w:.]+)' is not implemented",
        cause="this torch has no derivative for {operation}, so nothing that goes through it can be trained",
        remedy="install a newer torch, which has more of them; or compute it with other operations, under "
        "torch.no_grad() if no gradient has to pass there",
    ),
    "not_deterministic": Signature(
        r"\b(?P<operation>\w{1,100}) does not have a deterministic implementation, but you set",
        cause="{operation} is not deterministic, and torch.use_deterministic_algorithms forbids such operations",
        remedy="call torch.use_deterministic_algorithms(True, warn_only=True), or replace the operation",
    ),
    "empty_tensor": Signature(
        r"The size of tensor (?P<which>a) \(0\) must match the size of tensor b \(\d+\)",
        r"The size of tensor a \(\d+\) must match the size of tensor (?P<which>b) \(0\)",
        cause="one of two tensors is empty ({which}): a weight of which this rank holds only a shard (ZeRO 3, FSDP), "
        "or "
        "a batch without content",
        remedy="under ZeRO 3 or FSDP, call the wrapped model and not its parts, and gather a weight before its values "
        "are read (deepspeed.zero.GatheredParameters, FSDP.summon_full_params); otherwise print the shapes of the "
        "batch",
    ),
    "shape": Signature(
        r"(?P<shapes>mat1 and mat2 shapes cannot be multiplied)(?! \()",
        r"mat1 and mat2 shapes cannot be multiplied \((?P<shapes>[^)]+)\)",
        r"(?P<shapes>The size of tensor a \(\d+\) must match the size of tensor b \(\d+\))",
        r"RuntimeError: (?P<shapes>shape '\[.*\]' is invalid for input of size \d+)",
        r"RuntimeError: (?P<shapes>Function [\w:]+ returned an invalid gradient at index \d+ - got .+ but "
        r"expected .+)$",
        r"RuntimeError: (?P<shapes>\w+\(\w*\): number of dimensions in the tensor input does not match .+)$",
        r"(?:Index|Runtime)Error: (?P<shapes>Dimension out of range \(.+)$",
        r"RuntimeError: (?P<shapes>Expected (?:both dimensions of mat2|\d+D (?:\(\w+\) )?(?:or \d+D \(\w+\) )?input) "
        r".+)$",
        r"(?P<shapes>operands could not be broadcast together with shapes .+)$",
        r"(?P<shapes>stack expects each tensor to be equal size)",
        r"/collate\.py\"[\s\S]{0,600}?RuntimeError: (?P<shapes>Trying to resize storage that is not resizable)",
        r"(?P<shapes>Expected input batch_size \(\d+\) to match target batch_size \(\d+\))",
        r"(?P<shapes>Sizes of tensors must match except in dimension .+)$",
        r"(?P<shapes>The expanded size of the tensor .+|Target size .+ must be the same as input size .+)$",
        r"(?P<shapes>Given (?:groups|normalized_shape)=.+|(?:multi|0D or 1D)-?target .*not supported)",
        r"RuntimeError: (?P<shapes>size mismatch, .+|mat2 must be a matrix.+)$",
        r"(?P<shapes>tensor a .+ must match .+ tensor b|Attention mask should be of size .+)$",
        cause="shape mismatch: {shapes}",
        remedy="print the shapes where it fails; pad sequences of different lengths in collate (task.py)",
    ),
    "cudagraphs_overwritten": Signature(
        r"accessing tensor output of CUDAGraphs that has been overwritten by a subsequent run",
        cause="a tensor that torch.compile's CUDA graphs had returned was used after the next run had written over it",
        remedy="call torch.compiler.cudagraph_mark_step_begin() before each step, or clone what is kept longer; or "
        "compile without CUDA graphs: mode 'default', or triton.cudagraphs off",
    ),
    "compile": Signature(
        r"torch(?:\._)?(?:dynamo|inductor)\.exc\.\w+: (?:backend='\w+' raised:\n)?(?P<problem>(?:.*? got "
        r"(?=\w+Error\())?.+)$",
        r"torch(?:\._)?(?:dynamo|inductor)\.exc\.\w+:?$(?P<problem>)",
        # A traceback that is cut before its exception; only compiling makes these calls.
        r"/torch/_(?:dynamo/output_graph|inductor/(?:compile_fx|lowering|graph|codegen/\w+))\.py\", line \d+, in \w+"
        r"(?P<problem>)$(?=(?:\n  .*){0,60}\Z)",
        r"^(?:LoweringException|BackendCompilerFailed|InductorError): (?P<problem>.+)$",
        r"/torch/(?:_inductor/(?!runtime)|_dynamo/(?:output_graph|convert_frame|symbolic_convert|variables|"
        r"repro|backends)|"
        r"_functorch/_?aot_autograd)[^\"\n]*\", line \d+, in .+\n(?:  .*\n){0,300}"
        r"(?P<problem>(?!torch\.|[\w.]*(?:OutOfMemoryError|Interrupt))[\w.]*(?:Error|Exception)(?:: .+|:?$))",
        cause="torch.compile could not compile the model: {problem}",
        remedy="to run without it: TORCHDYNAMO_DISABLE=1 trainwiz launch; to see where: TORCH_LOGS=graph_breaks",
    ),
}

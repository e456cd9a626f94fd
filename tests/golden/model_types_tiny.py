"""Tiny configurations and dummy inputs for every model type of transformers (see model_types.py)."""

import inspect

import torch

VOCAB = 200
LENGTH = 9

# What a size becomes wherever a configuration or a section of it has the key.
WIDTH = 16
SIZES = {
    **dict.fromkeys("""hidden_size d_model n_embd dim embed_dim hidden_dim d_embed encoder_hidden_size
        decoder_hidden_size intermediate_size ffn_dim d_ff n_inner d_inner encoder_ffn_dim decoder_ffn_dim
        ffn_hidden_size ffn_size inner_dim embedding_size embedding_dim projection_dim output_dim
        word_embed_proj_dim moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        mlp_dim vision_hidden_size text_hidden_size adapter_dim feed_forward_size expert_ffn_hidden_size
        dense_intermediate_size feature_size mlp_hidden_size hidden_sizes_ pooler_dim
        multimodal_projection_dim kv_dim cross_attention_hidden_size decoder_intermediate_size
        encoder_intermediate_size reduction_dim perceiver_dim fusion_hidden_size
        backbone_hidden_size_ encoder_feedforward_dim decoder_feedforward_dim encoder_in_dim
        hidden_size_per_layer_input conv_channels intermediate_dim mlp_intermediate_size out_hidden_size
        attention_hidden_size text_embed_dim d_proj_ pooler_hidden_size mm_embed_dim
        prefix_hidden_size codebook_dim qformer_hidden_size decoder_dim mask_feature_size
        text_intermediate_size""".split(), WIDTH),
    **dict.fromkeys("""num_hidden_layers n_layer n_layers num_layers num_decoder_layers depth encoder_depth
        num_encoder_layers decoder_depth""".split(), 2),
    **dict.fromkeys("""encoder_layers decoder_layers decoder_num_hidden_layers encoder_num_hidden_layers
        vision_num_layers num_qformer_layers text_decoder_layers text_encoder_layers
        num_perceiver_layers depth_num_layers num_post_layers perceiver_depth""".split(), 1),
    **dict.fromkeys("""vocab_size src_vocab_size tgt_vocab_size text_vocab_size decoder_vocab_size
        encoder_vocab_size audio_vocab_size vocab_size_per_layer_input""".split(), VOCAB),
    **dict.fromkeys("max_position_embeddings n_positions n_ctx max_seq_len max_sequence_length "
                    "seq_length max_target_positions max_seq_length max_encoder_position_embeddings "
                    "max_decoder_position_embeddings model_max_length".split(), 64),
    **dict.fromkeys("num_experts n_routed_experts num_local_experts moe_num_experts".split(), 2),
    **dict.fromkeys("num_experts_per_tok moe_topk num_experts_per_token moe_k top_k_experts num_selected_experts "
                    "n_group topk_group num_expert_group expert_capacity".split(), 1),
    **dict.fromkeys("image_size img_size input_size vision_image_size".split(), 16),
    **dict.fromkeys("patch_size vision_patch_size".split(), 4),
    **dict.fromkeys("kv_channels d_kv attention_head_dim "
                    "head_size mamba_d_head mamba_head_dim linear_key_head_dim linear_value_head_dim d_head "
                    "global_head_dim swa_head_dim dim_head".split(), 8),
    **dict.fromkeys("mamba_d_state mamba_n_heads mamba_num_heads linear_num_key_heads linear_num_value_heads "
                    "state_size ssm_state_size".split(), 4),
    **dict.fromkeys("sliding_window local_attention local_window_size attention_chunk_size window_size_ "
                    "sliding_window_size".split(), 4),
    **dict.fromkeys("num_queries num_query_tokens query_tokens num_latents num_mel_bins n_mels "
                    "max_source_positions".split(), 8),
    # All of latent attention of another size.
    "q_lora_rank": 12, "kv_lora_rank": 10, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 5,
    # More than the tokens of a text.
    "index_topk": 16, "index_head_dim": 8, "index_n_heads": 2, "first_k_dense_replace": 1,
    "mamba_expand": 2, "mamba_d_conv": 4, "num_frames": 2, "mamba_n_groups": 1, "n_groups": 1,
    "image_seq_length": 4, "num_image_tokens": 4, "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 10, "num_channels": 3, "temporal_patch_size": 2, "type_vocab_size": 2,
    "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "num_feat_extract_layers": 2,
    "codevector_dim": 8, "proj_codevector_dim": 8, "num_codevectors_per_group": 4, "spatial_merge_size": 2,
    "n_shared_experts": 1, "num_nextn_predict_layers": 0, "max_2d_position_embeddings": 64, "window_size": 4,
    "attention_window": 4, "conv_depthwise_kernel_size": 3, "num_tokens": 4, "decoder_input_dim": 16,
    "num_groups": 8, "norm_num_groups": 8,
    "mask_token_id": 7, "ctc_zero_infinity": False, "num_register_tokens": 2,
}
HEADS = {"num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
         "decoder_attention_heads", "decoder_num_attention_heads", "encoder_num_attention_heads",
         "vision_num_heads", "text_decoder_heads", "num_qformer_heads", "resampler_n_heads", "encoder_heads",
         "n_heads_", "vision_attention_heads", "num_global_attention_heads"}
GROUPS = {"num_key_value_heads", "num_kv_heads", "n_kv_heads", "multi_query_group_num", "n_head_kv",
          "num_key_value_groups_", "decoder_num_key_value_heads", "encoder_num_key_value_heads",
          "num_global_key_value_heads", "swa_num_key_value_heads"}
LISTS = {"hidden_sizes": 16, "depths": 1, "num_heads": 2, "num_attention_heads": 2, "embed_dims": 16,
         "encoder_hidden_sizes": 16, "decoder_hidden_sizes": 16, "conv_dim": 8, "dims": 16, "layers": 1,
         "neck_hidden_sizes": 16, "mlp_ratios": 2, "sr_ratios": 1, "embed_dim": 16, "depth": 1,
         "backbone_out_channels": 16, "post_process_channels": 16, "fusion_hidden_sizes": 16,
         "hidden_dim": 16, "decoder_channels": 16, "stage_block": 1}
DROP = {"out_features", "stage_names", "out_indices", "_out_features", "_out_indices", "reshape_hidden_states_",
        "per_layer_config", "transformers_version", "_name_or_path", "architectures", "dtype", "torch_dtype",
        "_attn_implementation_autoset", "_attn_implementation"}
WAV = {"conv_dim": [8, 8], "conv_stride": [4, 2], "conv_kernel": [4, 2]}


def kinds_of(layer_types, least=2):
    """Each kind of layer once, in the order in which they come."""
    kinds = list(dict.fromkeys(layer_types))
    while len(kinds) < least:
        kinds.append(kinds[-1])
    return kinds


def shrink(d, variant, path=""):
    """A copy of a configuration as a dictionary with everything that makes it large made small.

    variant: how many heads, of what size."""
    heads, groups, head_dim = variant
    out = {}
    kinds = kinds_of(d["layer_types"]) if isinstance(d.get("layer_types"), list) and d["layer_types"] else None
    grouped = any(isinstance(d.get(g), int) and any(isinstance(d.get(h), int) and d[g] < d[h] for h in HEADS)
                  for g in GROUPS)
    token = 3
    for key, value in d.items():
        if not isinstance(key, str):  # a table, as of sizes of images
            out[key] = value
            continue
        if key in DROP:
            continue
        if isinstance(value, bool) or value is None or isinstance(value, str):
            out[key] = value
        elif isinstance(value, dict):
            out[key] = rope(value, SECTIONS.get(d.get("model_type"))) if "rope" in key else shrink(value, variant, f"{path}{key}.")
        elif key == "layer_types" and kinds:
            out[key] = kinds
        elif key in ("mlp_layer_types", "ffn_types") and isinstance(value, list) and value:
            out[key] = [value[-1]] * (len(kinds) if kinds else 2)
        elif isinstance(value, list):
            if "conv_stride" in d and key in WAV:
                out[key] = WAV[key]
            elif key in LISTS and all(isinstance(v, int) for v in value):
                out[key] = [LISTS[key]] * len(value)
            elif key in ("image_size", "img_size", "patch_size") and all(isinstance(v, int) for v in value):
                out[key] = [SIZES[key]] * len(value)
            elif key.endswith("token_id") and value and isinstance(value[0], int):
                out[key] = 2
            elif value and isinstance(value[0], dict):
                out[key] = [shrink(v, variant, path) for v in value]
            else:
                out[key] = value
        elif isinstance(value, int):
            if key.endswith(("token_id", "token_index")):
                token += 1
                out[key] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(key, token)
            elif key in HEADS:
                out[key] = heads
            elif key in GROUPS:
                out[key] = groups if grouped else heads
            elif key in ("head_dim", "attention_head_dim"):
                out[key] = head_dim
            elif key in ("num_hidden_layers", "n_layers", "num_layers", "n_layer") and kinds:
                out[key] = len(kinds)
            elif key in SIZES:
                out[key] = SIZES[key]
            else:
                out[key] = value
        else:
            out[key] = value
    return out


def rope(value, sections=None):
    """Rotary positions with wavelengths that a few tokens show."""
    if not isinstance(value, dict):
        return value
    out = {}
    for key, v in value.items():
        if isinstance(v, dict):
            out[key] = rope(v)
        elif key == "mrope_section":
            out[key] = sections or [2, 1, 1]
        elif key == "rope_theta" and v:
            out[key] = 100.0 if v != 10_000.0 else 50.0
        else:
            out[key] = v
    if sections and "rope_type" in out:
        out["mrope_section"] = sections
    return out


# Families with positions in three dimensions, each with how many pairs of a head each dimension turns.
SECTIONS = {**dict.fromkeys(["qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text", "qwen2_5_omni_talker",
                             "qwen3_vl_text", "paddleocr_vl_text", "colqwen2", "ernie4_5_vl_moe_text"], [2, 1, 1]),
            **dict.fromkeys(["glm4v_text", "glm_ocr_text", "glm_image_text", "glm4v_moe_text"], [1, 1, 0])}
VIDEO = {"videomae", "vivit", "timesformer", "vjepa2", "videoprism_vision_model",
         "video_llava_"}

VARIANTS = [(4, 2, 8), (2, 1, 8), (4, 2, 4), (2, 2, 8), (1, 1, 16)]


def set_keys(d, changes):
    """Applies changes {"a.b": value} to nested dictionaries."""
    for path, value in changes.items():
        at = d
        *parts, last = path.split(".")
        if any(not isinstance(at := at.get(part), dict) for part in parts):
            continue  # of a model that has the section
        if value is DELETE:
            at.pop(last, None)
        else:
            at[last] = value


DELETE = object()

# Rotary positions per kind of layer.
KINDS = {"full_attention": {"rope_type": "default", "rope_theta": 100.0},
         "sliding_attention": {"rope_type": "default", "rope_theta": 50.0}}
# As DeepSeek states it, for shorter texts.
YARN = {"rope_type": "yarn", "rope_theta": 50.0, "factor": 8.0, "mscale": 1.0, "mscale_all_dim": 0.8, "beta_fast": 32.0,
        "beta_slow": 1.0, "original_max_position_embeddings": 8}

# Tokenizers of images, whose norms have 32 groups of channels.
PIXELS = {"base_channels": 32, "channel_multiplier": [1, 1], "num_res_blocks": 1, "resolution": 16, "attn_resolutions": [8],
          "out_channels": 3}

# Where the generic sizes do not fit: changes of the tiny configuration.
CHANGES = {
    "audio-spectrogram-transformer": {"max_length": 16, "num_mel_bins": 16, "frequency_stride": 4, "time_stride": 4},
    "bamba": {"attn_layer_indices": [1]},
    **dict.fromkeys(["gptj", "codegen"], {"rotary_dim": 4}),
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["full_attention", "conv"]},
    "vitpose_backbone": {"part_features": 4, "num_experts": 1, "image_size": [32, 32], "patch_size": [16, 16]},
    "pix2struct_vision_model": {"patch_embed_hidden_size": 48},
    "kosmos_2_5_vision_model": {"patch_embed_hidden_size": 48},
    "vivit": {"tubelet_size": [2, 4, 4]},
    "xmod": {"default_language": "en_XX"},
    "esm": {"vocab_size": VOCAB, "mask_token_id": 7, "pad_token_id": 0},
    "fsmt": {"use_cache": False},
    "big_bird": {"attention_type": "original_full"},
    **dict.fromkeys(["sam_vision_model", "sam_hq_vision_model", "got_ocr2_vision", "pp_chart2table_vision", "slanext_vision",
                     "pp_formulanet_vision", "deepseek_ocr2_sam_vision_model", "unlimited_ocr_sam_vision_model"],
                    {"window_size": 3, "global_attn_indexes": [1]}),
    "vitdet": {"window_size": 3, "window_block_indices": [0], "use_relative_position_embeddings": True},
    "vitmatte": {"backbone_config.window_size": 3, "backbone_config.window_block_indices": [0],
                 "backbone_config.use_relative_position_embeddings": True},
    "seggpt": {"image_size": [32, 16], "pretrain_image_size": 16, "merge_index": 0,
               "intermediate_hidden_state_indices": [0, 1]},
    **dict.fromkeys(["granite_speech_encoder", "granite_speech_plus_encoder"],
                    {"context_size": 3, "max_pos_emb": 6, "input_dim": 16, "output_dim": 5}),
    **dict.fromkeys(["granite_speech", "granite_speech_plus"],
                    {"encoder_config.context_size": 4, "encoder_config.max_pos_emb": 6, "encoder_config.input_dim": 16,
                     "encoder_config.output_dim": 5, "downsample_rate": 2, "window_size": 16}),
    "granite_speech5_encoder": {"context_size": 4, "max_position_embeddings": 6},
    **dict.fromkeys(["seamless_m4t", "seamless_m4t_v2"],
                    {"feature_projection_input_dim": 8, "speech_encoder_attention_heads": 2, "speech_encoder_layers": 2,
                     "left_max_position_embeddings": 3, "right_max_position_embeddings": 2, "unit_embed_dim": 16,
                     "spkr_embed_dim": 8, "lang_embed_dim": 8, "upsample_initial_channel": 64,
                     "unit_hifi_gan_vocab_size": 50}),
    "sew-d": {"position_buckets": 4, "max_position_embeddings": 8},
    "wavlm": {"num_buckets": 8, "max_bucket_distance": 6},
    "wav2vec2-bert": {"left_max_position_embeddings": 3, "right_max_position_embeddings": 2,
                      "feature_projection_input_dim": 8},
    **dict.fromkeys(["align", "align_vision_model", "efficientnet"], {"num_block_repeats": [1, 1, 1, 1, 1, 1, 1],
                                                                      "vision_config.num_block_repeats": [1] * 7}),
    **dict.fromkeys(["autoformer", "informer", "time_series_transformer"], {"prediction_length": 4, "input_size": 1, "feature_size": DELETE}),
    "blt": {"use_cache": False, "encoder_hash_byte_group_vocab": 50, "encoder_hash_byte_group_size": [3],
            "encoder_config.hidden_size_global": 16, "decoder_config.hidden_size_global": 16, "patching_threshold": 4.9},
    **dict.fromkeys(["bridgetower", "bridgetower_vision_model"], {"vision_config.hidden_size": 128, "hidden_size": 128,
                                                                  "text_config.hidden_size": 128}),
    "chameleon": {"vocabulary_map": {"<image>": 5}, **{f"vq_config.{key}": value for key, value in PIXELS.items()}},
    **dict.fromkeys(["chameleon_vqgan", "apertus1p5_vision_tokenizer"], PIXELS),
    "emu3": {"vocabulary_map": {"<image>": 5, "<|extra_200|>": 6}, "vq_config.base_channels": 32},
    "emu3_vqgan": {"base_channels": 32},
    "janus_vqgan": {**PIXELS, "num_patches": 8},
    "janus": {"vq_config.num_patches": 8, **{f"vq_config.{key}": value for key, value in PIXELS.items()}},
    **dict.fromkeys(["wavtokenizer", "wavtokenizer_encoder"], {"decoder_attention_num_groups": 8}),
    "apertus1p5": {**{f"vision_config.{key}": value for key, value in PIXELS.items()},
                   "audio_config.decoder_attention_num_groups": 8},
    "swin2sr": {"depths": [1, 1], "num_heads": [2, 2]},
    "swinv2": {"image_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 16, "pretrained_window_sizes": [3, 0, 0, 0],
               "num_heads": [2] * 4},
    "xclip": {"prompt_num_attention_heads": 2, "vision_config.mit_hidden_size": 16, "vision_config.mit_num_attention_heads": 2,
              "vision_config.mit_intermediate_size": 16},
    **{name: {f"{section}num_groups": [2] * 4 for section in ("", "vision_config.")} for name in ("florence2", "florence_vision")},
    **dict.fromkeys(["cohere_compass", "cohere_compass_text"], {"rope_parameters": KINDS, "text_config.rope_parameters": KINDS}),
    "dbrx": {"rope_parameters.rope_theta": 100.0, "attn_config.rope_theta": 100.0, "attn_config.clip_qkv": 0.5, "attn_config.kv_n_heads": 2, "ffn_config.hidden_size": 16},
    "dia": {"decoder_config.num_channels": 9, "decoder_config.cross_num_attention_heads": 2, "decoder_config.cross_head_dim": 8,
            "decoder_config.cross_num_key_value_heads": 2, "decoder_config.cross_hidden_size": 16},
    "sapiens2": {"num_attention_heads": 4, "num_key_value_heads_per_layer": [4, 2]},
    **dict.fromkeys(["eomt", "eomt_dinov3"], {"num_blocks": 1}),
    **dict.fromkeys(["xlm", "flaubert"], {"emb_dim": 16}),
    "gradium_phonon_tts": {"flow_head_config.condition_dim": 16},
    "pocket_tts": {"flow_head_config.condition_dim": 16},
    "granite4_vision": {"deepstack_layer_map": [], "downsample_rate": "1/2", "vision_config.hidden_size": 64,
                        "vision_config.num_attention_heads": 2, "vision_config.projection_dim": 16},
    "luke": {"entity_vocab_size": 20, "entity_emb_size": 16, "use_entity_aware_attention": False},
    "minimax_m3_vl_text": {"rotary_dim": 4},
    "minimax_m3_vl": {"text_config.rotary_dim": 4},
    "perceiver": {"d_latents": 16, "num_self_attends_per_block": 2, "num_cross_attention_heads": 2},
    "lasr_encoder": {"subsampling_conv_channels": 16},
    "lasr_ctc": {"encoder_config.subsampling_conv_channels": 16},
    "moonshine": {"hidden_size": 40, "encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2,
                  "encoder_num_key_value_heads": 2, "decoder_num_key_value_heads": 2},
    "moonshine_streaming": {"num_key_value_heads": 2, "encoder_config.sliding_windows": [[4, 2], [3, 0]]},
    "moonshine_streaming_encoder": {"sliding_windows": [[4, 2], [3, 0]]},
    "aria": {"projector_patch_to_query_dict": {16: 8}},
    **dict.fromkeys(["t5gemma2", "t5gemma2_text", "t5gemma2_encoder"], {"dropout_rate": 0.0}),
    "longt5": {"local_radius": 2},
    "pegasus_x": {"block_size": 4, "num_global_tokens": 3},
    "speecht5": {"encoder_max_relative_position": 4},
    "bigbird_pegasus": {"attention_type": "original_full"},
    "evolla": {"resampler_heads": 2, "resampler_depth": 1, "resampler_num_latents": 4},
    # Rotation of a part of each head.
    "clvp_encoder": {"hidden_size": 80, "num_attention_heads": 2},
    "clvp": {f"{part}_config.{key}": value for part in ("text", "speech") for key, value in
             {"hidden_size": 80, "num_attention_heads": 2}.items()},
    "longformer": {"attention_window": [4, 8]},
    "gemma3n_audio": {"conf_num_attention_heads": 2, "conf_num_hidden_layers": 2, "conf_attention_chunk_size": 3,
                      "conf_attention_context_left": 4, "conf_attention_logit_cap": 3.0},
    "gemma4_audio": {"attention_chunk_size": 4, "attention_context_left": 5, "attention_logit_cap": 3.0,
                     "subsampling_conv_channels": [8, 4]},
    "unlimited_ocr_vision": {"encoder_config.num_hidden_layers": 2},
    "fine_acoustics": {},
    "nemotron3_diarization": {"head_config.audio_hidden_size": 16},
    "patchtst": {"context_length": 8},
    "superglue": {"keypoint_detector_config.descriptor_decoder_dim": 16, "gnn_layers_types": ["self", "cross"],
                  "keypoint_encoder_sizes": [16]},
    **dict.fromkeys(["minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"], {"insert_layer_id": 0}),
    **dict.fromkeys(["bark"], {"semantic_config.input_vocab_size": VOCAB, "coarse_acoustics_config.input_vocab_size": VOCAB,
                               "fine_acoustics_config.input_vocab_size": VOCAB}),
    **dict.fromkeys(["qwen3_asr", "qwen3_asr_encoder"], {"n_window_infer": 200, "audio_config.n_window_infer": 200}),
    "clap_audio_model": {"spec_size": 128, "num_mel_bins": 32, "patch_embeds_hidden_size": 16},
    "clap": {"audio_config.spec_size": 128, "audio_config.num_mel_bins": 32, "audio_config.patch_embeds_hidden_size": 16},
    **dict.fromkeys(["pvt", "pvt_v2"], {"image_size": 64, "sequence_reduction_ratios": [1, 1, 1, 1]}),
    "tvp": {"max_img_size": 64, "visual_prompt_size": 8, "num_frames": 2, "backbone_config.hidden_sizes": [16, 16, 16, 16]},
    "lw_detr_vit": {"image_size": 64, "pretrain_image_size": 64, "num_windows": 4, "num_windows_side": 2},
    **dict.fromkeys(["videoprism", "videoprism_vision_model"], {
        "tubelet_size": [1, 4, 4], "num_spatial_layers": 2, "num_temporal_layers": 1, "num_auxiliary_layers": 1,
        "vision_config.tubelet_size": [1, 4, 4], "vision_config.num_spatial_layers": 2,
        "vision_config.num_temporal_layers": 1, "vision_config.num_auxiliary_layers": 1}),
    "vitpose": {"backbone_config.part_features": 4, "backbone_config.image_size": [32, 32],
                "backbone_config.patch_size": [16, 16], "backbone_config.num_experts": 1, "scale_factor": 2},
    **dict.fromkeys(["pe_video", "pe_video_encoder", "pe_audio_video", "pe_audio_video_encoder", "fast_vlm", "timm_wrapper",
                     "perception_lm", "timm_backbone"],
                    {f"{section}architecture": "test_vit" for section in
                     ("", "vision_config.", "video_config.vision_config.", "audio_video_config.video_config.vision_config.")}),
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"], "text_config.num_experts_per_tok": 1,
                      "text_config.n_routed_experts": 2},
    "dots3_note_audio_encoder": {"adapter_input_size": 16, "conv_output_size": 32, "downsample_hidden_size": 16},
    "dots3_note_vision_encoder": {"adapter_in_dim": 16, "adapter_out_dim": 16},
    **dict.fromkeys(["exaone4_5", "exaone4_5_vision"], {"window_size": 16, "vision_config.window_size": 16}),
    "fun_asr_nano": {"adaptor_config.intermediate_size": 4},
    "kosmos-2": {"text_config.attention_heads": 4},
    **dict.fromkeys(["molmo2", "molmo2_vision"], {"vision_config.num_position_embeddings": 16, "num_position_embeddings": 16,
                                                  "adapter_config.vision_feature_layer": [-1, -2]}),
    **dict.fromkeys(["nemo_speechlm", "nemotron3_5_transcribe_audio"],
                    {f"{section}head_config.audio_hidden_size": 16 for section in
                     ("", "diarization_config.", "audio_config.", "audio_config.diarization_config.")}),
    **dict.fromkeys(["neucodec", "xcodec2"], {"hidden_size": 64, "head_dim": 16, "quantization_dim": 64,
                                              "downsampling_ratios": [2, 2], "encoder_hidden_size": 8}),
    "pix2struct_text_model": {"initializer_range": 0.02},
    **dict.fromkeys(["pocket_tts_audio_tokenizer", "pocket_tts_audio_tokenizer_encoder", "pocket_tts_audio_tokenizer_decoder",
                     "mimi", "mimi_encoder", "mimi_decoder"], {"upsample_groups": 1}),
    **dict.fromkeys(["qwen2_5_omni", "qwen2_5_omni_token2wav", "qwen2_5_omni_bigvgan"],
                    {f"{section}upsample_initial_channel": 64 for section in
                     ("", "bigvgan_config.", "token2wav_config.bigvgan_config.")}
                    | {f"{section}block_size": 4 for section in ("dit_config.", "token2wav_config.dit_config.")}),
    "qwen2_5_omni_dit": {"block_size": 4},
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 16},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    **dict.fromkeys(["vibevoice", "vibevoice_asr", "vibevoice_acoustic_tokenizer", "vibevoice_acoustic_tokenizer_encoder",
                     "vibevoice_acoustic_tokenizer_decoder"],
                    {f"{section}{key}": value for key, value in
                     {"num_filters": 4, "downsampling_ratios": [2, 2], "depths": [1, 1, 1]}.items()
                     for section in ("", "acoustic_tokenizer_config.", "acoustic_tokenizer_encoder_config.",
                                     "semantic_tokenizer_config.", "semantic_tokenizer_encoder_config.")}),
    "perception_lm": {"vision_config.architecture": "test_vit", "vision_config.model_args": {"embed_dim": 64}},
    "fast_vlm": {"vision_config.architecture": "fastvit_t8"},
    "pe_audio_encoder": {"dac_config.downsampling_ratios": [2, 2], "dac_config.upsampling_ratios": [2, 2]},
    "kyutai_speech_to_text": {"codec_config.upsample_groups": 1, "num_codebooks": 2},
    **dict.fromkeys(["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"], {"head_dim": 32}),
    **dict.fromkeys(["qwen3_5", "qwen3_5_moe", "minicpmv4_6", "minicpmv4_7", "minicpm_ocr", "jev"],
                    {"text_config.head_dim": 32}),
    **{name: {f"{section}{key}": value for key, value in
              {"head_dim": 16, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16,
               "indexer_budget": 8, "indexer_compress_ratio": 2}.items()}
       for name, section in (("qwen4_exp_text", ""), ("qwen4_exp", "text_config."))},
    "laguna": {"layer_types": ["full_attention", "sliding_attention"], "num_attention_heads_per_layer": [4, 6],
               "mlp_layer_types": ["dense", "dense"]},
    "step3p5": {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 4,
                "mlp_layer_types": ["dense", "dense"], "num_sliding_attention_heads": 6, "query_pre_attn_scalar": 5},
    "step3p7": {"text_config.layer_types": ["full_attention", "sliding_attention"], "text_config.sliding_window": 4,
                "text_config.mlp_layer_types": ["dense", "dense"], "text_config.num_sliding_attention_heads": 6},
    "kosmos_2_text_model": {"attention_heads": 4, "layers": 2, "ffn_dim": 16},
    "kosmos-2": {"text_config.attention_heads": 4, "text_config.layers": 2},
    "muse_spark": {"audio_config.patch_sizes": [4, 3], "audio_config.hidden_sizes": [16, 16],
                   "audio_config.depths": [1, 1]},
    "deepseek_v2": {"rope_parameters": YARN, "q_lora_rank": None},
    "deepseek_v3": {"rope_parameters": YARN},
    "deepseek_v4": {"num_hidden_layers": 4, "mlp_layer_types": ["moe"] * 4, "num_key_value_heads": 1, "head_dim": 16,
                    "layer_types": ["sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention",
                                    "compressed_sparse_attention"], "partial_rotary_factor": 0.25, "o_groups": 2,
                    "compress_rates": {"compressed_sparse_attention": 2, "heavily_compressed_attention": 3},
                    "o_lora_rank": 6, "compress_rope_theta": 40.0, "rope_theta": 50.0, "rope_parameters": YARN},
    "longcat_flash": {"head_dim": 4, "qk_head_dim": 10, "moe_topk": 2},
    # Positions that change the factor on queries.
    "mistral4": {"rope_parameters.original_max_position_embeddings": 4, "rope_parameters.llama_4_scaling_beta": 0.4,
                 "rope_parameters.factor": 8.0, "rope_parameters.rope_theta": 50.0,
                 "rope_parameters.partial_rotary_factor": 0.4, "head_dim": 10},
    "glm5_next_text": {"qk_rope_head_dim": 0},
    # Layers of both kinds that share keys and values, some of which are keys alone, and of two sizes.
    **dict.fromkeys(["gemma4_text", "gemma4_unified_text"], {
        "layer_types": ["sliding_attention", "full_attention"] * 3, "num_hidden_layers": 6, "num_kv_shared_layers": 2,
        "attention_k_eq_v": True, "global_head_dim": 16, "num_global_key_value_heads": 1}),
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_hidden_layers": 4,
                     "num_kv_shared_layers": 2, "intermediate_size": 16, "activation_sparsity_pattern": DELETE},
    "gemma3n": {"text_config.layer_types": ["sliding_attention", "full_attention"] * 2,
                "text_config.num_hidden_layers": 4, "text_config.num_kv_shared_layers": 2,
                "text_config.intermediate_size": 16, "text_config.activation_sparsity_pattern": DELETE},
    # All layers share keys and values: those of another model.
    **dict.fromkeys(["gemma4_assistant", "gemma4_unified_assistant"], {"backbone_hidden_size": WIDTH} | {
        f"text_config.{key}": value for key, value in {
            "layer_types": ["sliding_attention", "full_attention"], "num_hidden_layers": 2, "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_attention_heads": 4, "head_dim": 8,
            "num_key_value_heads": 2, "attention_k_eq_v": True, "global_head_dim": 16,
            "num_global_key_value_heads": 1}.items()}),
    # Their own 512 would make scores so large that f32 has no five digits left.
    **dict.fromkeys(["gemma4", "gemma4_unified", "embedding_gemma2"], {"text_config.global_head_dim": 16}),
    "diffusion_gemma_text": {"global_head_dim": 16, "num_global_key_value_heads": 1, "num_experts": 2,
                             "top_k_experts": 1, "moe_intermediate_size": 16},
    "diffusion_gemma": {"text_config.global_head_dim": 16, "text_config.num_global_key_value_heads": 1,
                        "text_config.num_experts": 2, "text_config.top_k_experts": 1,
                        "text_config.moe_intermediate_size": 16},
    "gemma4_vision": {"pooling_kernel_size": 2},
    "embedding_gemma2_text": {"global_head_dim": 16, "sliding_window": 3},
    # Positions that change the factor on queries.
    "llama4_text": {"floor_scale": 3, "no_rope_layers": [1, 0], "attn_scale": 0.4, "moe_layers": DELETE},
    "ministral3": {"rope_parameters.original_max_position_embeddings": 4, "rope_parameters.llama_4_scaling_beta": 0.4},
    **dict.fromkeys(["hunyuan_v1_dense", "hunyuan_v1_moe"], {"head_dim": 8, "rope_parameters": {
        "rope_theta": 100.0, "rope_type": "dynamic", "alpha": 5.0, "factor": 1.0}}),
    "hunyuan_vl_text": {"head_dim": 8, "rope_parameters": {
        "rope_theta": 100.0, "rope_type": "dynamic", "alpha": 5.0, "factor": 1.0, "mrope_section": [2, 1, 1]}},
    "hunyuan_vl": {"text_config.head_dim": 8, "text_config.rope_parameters": {
        "rope_theta": 100.0, "rope_type": "dynamic", "alpha": 5.0, "factor": 1.0, "mrope_section": [2, 1, 1]}},
    "mimo_v2_flash": {"v_head_dim": 4},
    "timesfm2_5": {"patch_length": 4, "context_length": 64},
}
# Arguments of config classes that refuse their own defaults.
ARGUMENTS = {"gemma4_assistant": {"text_config": {
    "model_type": "gemma4_text", "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0}}}
# Detectors: a small backbone, and images that its strides divide.
RESNET = {"model_type": "resnet", "embedding_size": 8, "hidden_sizes": [8, 8, 8, 16], "depths": [1, 1, 1, 1],
          "layer_type": "basic", "num_channels": 3, "out_features": ["stage4"]}
RESNET3 = {**RESNET, "out_features": ["stage2", "stage3", "stage4"]}
LEVELS = {"id2label": DELETE, "label2id": DELETE, "encoder_hidden_dim": 16, "decoder_in_channels": [16, 16, 16], "encoder_in_channels": [16, 16, 16],
          "initializer_bias_prior_prob": 0.1, "backbone_config.out_features": ["stage2", "stage3", "stage4"],
          "num_queries": 5, "decoder_layers": 2, "num_denoising": 0, "feat_strides": [8, 16, 32]}
HGNET = {"backbone_config.stem_channels": [3, 8, 8], "backbone_config.stage_in_channels": [8, 8, 16, 16],
         "backbone_config.stage_mid_channels": [8, 8, 8, 8], "backbone_config.stage_out_channels": [8, 16, 16, 16],
         "backbone_config.stage_num_blocks": [1, 1, 1, 1], "backbone_config.stage_numb_of_layers": [1, 1, 1, 1],
         "backbone_config.hidden_sizes": [8, 16, 16, 16]}
SWIN = {"backbone_config.out_features": ["stage1", "stage2", "stage3", "stage4"], "backbone_config.embed_dim": 8}
CHANGES |= {
    "ernie4_5_vl_moe_text": {"rope_parameters.mrope_section": [1, 1, 2], "hidden_size": 32},
    "ernie4_5_vl_moe": {"text_config.rope_parameters.mrope_section": [1, 1, 2], "text_config.hidden_size": 32,
                        "vision_config.out_hidden_size": 32},
    **dict.fromkeys(["qwen2_5_vl", "qwen2_5_omni_thinker", "hyperclovax_vision_v2"], {"vision_config.window_size": 24}),
    "qwen2_5_omni": {**CHANGES["qwen2_5_omni"], "thinker_config.vision_config.window_size": 24},
    **dict.fromkeys(["slanet", "slanext"], {"post_conv_out_channels": 12}),
    "zamba": {"num_hidden_layers": 3, "layers_block_type": ["mamba", "hybrid", "hybrid"], "attention_hidden_size": DELETE,
              "attention_head_dim": DELETE, "n_mamba_heads": 2},
    "zamba2": {"num_hidden_layers": 2, "layers_block_type": ["mamba", "hybrid"], "hybrid_layer_ids": [1], "num_mem_blocks": 1,
               "attention_hidden_size": DELETE, "attention_head_dim": DELETE, "mamba_headdim": 8, "n_mamba_heads": 4},
    **dict.fromkeys(["nemotron", "ministral"], {"head_dim": 8, "num_key_value_heads": 2}),
    "dots1": {"n_routed_experts": 2, "n_shared_experts": 1, "first_k_dense_replace": 2, "num_local_experts": DELETE, "head_dim": 8, "layer_types": ["full_attention"] * 2,
              "n_group": 1, "topk_group": 1, "num_experts_per_tok": 1},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "attention_layers": ["global", "local"], "num_layers": 2,
                "window_size": 3},
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8},
    **{name: {f"{section}rope_parameters.mrope_section": [1, 1, 0] for section in sections}
       for name, sections in (("hy_v4_vl_text", [""]), ("hy_v4_vl", ["text_config."]))},
    **{name: {f"{s}{k}": v for s in ("", "text_config.") for k, v in
              {"rope_parameters.mrope_section": [1, 1, 0], "indexer_types": ["full", "full"],
               "layer_types": ["indexed_attention"] * 2, "mlp_layer_types": ["dense", "dense"]}.items()}
       for name in ("hy_v4_vl_text", "hy_v4_vl")},
    **{name: {f"{section}{key}": value for section in ("", "backbone_config.", "vision_config.", "vision_config.backbone_config.")
              for key, value in {"backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]], "blocks_per_stage": [1, 1, 2, 1],
                                 "embed_dim_per_stage": [16, 32, 64, 128], "num_attention_heads_per_stage": [1, 2, 4, 8],
                                 "backbone_channel_list": [128, 64, 32, 16], "global_attention_blocks": [3],
                                 "window_size_per_stage": [8, 4, 4, 4],
                                 "image_size": [64, 64], "fpn_hidden_size": 16}.items()}
       | {"prompt_encoder_config.image_size": 64, "prompt_encoder_config.patch_size": 16,
          "mask_decoder_config.num_attention_heads": 2, "mask_decoder_config.iou_head_hidden_dim": 16}
       for name in ("sam2", "sam2_video", "edgetam_video", "sam2_vision_model", "sam2_hiera_det_model")},
    "modernbert-decoder": {"sliding_window": DELETE},
    "timesfm": {"context_length": 64},
    "recurrent_gemma": {"num_hidden_layers": 3, "lru_width": 16, "attention_window_size": 4},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"], "mamba_d_head": 8, "mamba_n_heads": 4},
    "granite4_vision": {**CHANGES["granite4_vision"], "qformer_config.encoder_hidden_size": 16},
    "patchtst": {"context_length": 16, "patch_length": 4, "patch_stride": 4, "num_input_channels": 2},
    "mpnet": {"vocab_size": VOCAB},
    "mimi": {**CHANGES["mimi"], "codebook_dim": 256, "vector_quantization_hidden_dimension": 16},
    "pix2struct": {"vision_config.patch_embed_hidden_size": 48},
    "kosmos-2.5": {"vision_config.patch_embed_hidden_size": 48},
    "phi4_multimodal": {"audio_config.num_blocks": 2, "audio_config.nemo_conv_channels": 8,
                        "audio_config.ext_pw_out_channel": 16, "audio_config.depthwise_separable_out_channel": 16,
                        "audio_config.input_size": 80, "audio_config.bias_max_distance": 3},
    "idefics": {"use_resampler": True},
    "minimax_m3_vl_vision": {"hidden_size": 64, "num_attention_heads": 2},
    "minimax_m3_vl": {**CHANGES["minimax_m3_vl"], "vision_config.hidden_size": 64, "vision_config.num_attention_heads": 2},
    "lightglue": {"descriptor_dim": 16, "keypoint_detector_config.descriptor_decoder_dim": 16, "num_attention_heads": 2},
    "kyutai_speech_to_text": CHANGES["kyutai_speech_to_text"],
    **dict.fromkeys(["detr", "table-transformer", "conditional_detr", "dab-detr"],
                    {"backbone_config": RESNET, "encoder_layers": 2, "decoder_layers": 2}),
    "deformable_detr": {"backbone_config": RESNET3, "d_model": 32, "decoder_layers": 2},
    **dict.fromkeys(["rt_detr", "rt_detr_v2"], LEVELS),
    "rf_detr": {"id2label": DELETE, "label2id": DELETE, "decoder_layers": 2, "decoder_self_attention_heads": 2,
                "decoder_cross_attention_heads": 2, "num_queries": 5},
    "lw_detr": {"id2label": DELETE, "label2id": DELETE, "decoder_layers": 2, "decoder_self_attention_heads": 2,
                "decoder_cross_attention_heads": 2, "num_queries": 5, "backbone_config.num_windows": 4,
                "backbone_config.num_windows_side": 2, "backbone_config.window_block_indices": [0],
                "backbone_config.out_features": ["stage2"], "projector_out_channels": 16,
                "projector_scale_factors": [1.0], "projector_in_channels": DELETE,
                "num_feature_levels": 1},
    "phi4_multimodal_audio": {"num_blocks": 2, "nemo_conv_channels": 8, "ext_pw_out_channel": 16,
                              "depthwise_separable_out_channel": 16, "input_size": 80, "bias_max_distance": 3},
    **dict.fromkeys(["sam3_detr_decoder", "sam3_lite_text_detr_decoder"], {"num_queries": 5}),
    "bros": {"dim_bbox_sinusoid_emb_2d": DELETE, "dim_bbox_sinusoid_emb_1d": DELETE, "dim_bbox_projection": DELETE,
             "hidden_size": 32, "num_attention_heads": 2},
    "lilt": {"hidden_size": 24, "num_attention_heads": 2},
    "omdet-turbo": {"backbone_config": {**RESNET3, "hidden_sizes": [8, 16, 16, 16]}, "task_encoder_hidden_dim": 16,
                    "class_embed_dim": 16, "text_projection_in_dim": 16, "text_projection_out_dim": 16,
                    "vision_features_channels": [16, 16, 16], "encoder_in_channels": [16, 16, 16],
                    "encoder_hidden_dim": 16, "encoder_dim_feedforward": 16, "decoder_hidden_dim": 16,
                    "decoder_num_heads": 2, "decoder_num_layers": 2, "decoder_dim_feedforward": 16},
    **dict.fromkeys(["d_fine", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4"], {**LEVELS, **HGNET}),
    "pp_doclayout_v3": {**LEVELS, **HGNET, "backbone_config.out_features": ["stage1", "stage2", "stage3", "stage4"],
                        "x4_feat_dim": 8, "mask_feature_channels": [8, 8]},
    "mask2former": {**SWIN, "feature_size": 32, "hidden_dim": 32, "mask_feature_size": 32, "dim_feedforward": 16,
                    "decoder_layers": 3},
    "oneformer": {**SWIN, "conv_dim": 32, "mask_dim": 32, "hidden_dim": 32, "dim_feedforward": 16, "decoder_layers": 3,
                  "text_encoder_width": 16, "text_encoder_num_layers": 1, "task_seq_len": 9},
    **dict.fromkeys(["grounding-dino", "mm-grounding-dino"],
                    {"d_model": 32, "backbone_config.out_features": ["stage2", "stage3", "stage4"],
                     "backbone_config.embed_dim": 8, "encoder_layers": 2, "decoder_layers": 2}),
    "layoutlmv3": {"coordinate_size": 3, "shape_size": 2, "visual_embed": False, "num_attention_heads": 2},
    "layoutlmv2": {"max_2d_position_embeddings": 1024, "coordinate_size": 3, "shape_size": 2, "num_attention_heads": 2},
    "layoutxlm": {"max_2d_position_embeddings": 1024, "coordinate_size": 3, "shape_size": 2, "num_attention_heads": 2, "fast_qkv": False},
    **dict.fromkeys(["sam", "sam_hq"],
                    {"prompt_encoder_config.image_embedding_size": 4, "mask_decoder_config.num_attention_heads": 2,
                     "vision_config.num_pos_feats": 8, "vision_config.output_channels": 16,
                     "mask_decoder_config.vit_dim": 16, "vision_config.global_attn_indexes": [1]}),
    **dict.fromkeys(["sam3_tracker", "sam3_tracker_video"],
                    {"vision_config.fpn_hidden_size": 16, "prompt_encoder_config.hidden_size": 16,
                     "vision_config.backbone_feature_sizes": [[16, 16], [8, 8], [4, 4]]}),
    "sam3_vit_model": {"window_size": 2, "global_attn_indexes": [1], "num_attention_heads": 2},
    "mlcd_vision_model": {"num_attention_heads": 2},
    "llama4_vision_model": {"num_attention_heads": 2},
    "step3p5_vision": {"num_attention_heads": 2},
    "mllama_vision_model": {"attention_heads": 2, "num_global_layers": 2, "intermediate_layers_indices": [0],
                            "vision_output_dim": 32},
    **dict.fromkeys(["qwen2_5_vl_vision", "qwen2_5_omni_vision_encoder"],
                    {"num_heads": 2, "window_size": 24, "fullatt_block_indexes": [1]}),
    "vjepa2": {"pred_num_hidden_layers": 1, "pred_hidden_size": 24, "pred_num_attention_heads": 2, "crop_size": 16,
               "frames_per_clip": 4, "hidden_size": 32, "num_attention_heads": 2, "pred_mlp_ratio": 1.0,
               "mlp_ratio": 1.0},
}
MEMORY = {"memory_attention_hidden_size": 16, "memory_attention_num_layers": 1, "memory_attention_rope_feat_sizes": [4, 4],
          "memory_attention_feed_forward_hidden_size": 16}
for _name in ("sam2_video", "sam3_tracker_video"):
    CHANGES[_name] = {**CHANGES[_name], **MEMORY}
# Further models of a type, with layers that its usual one lacks.
FURTHER = {"roformer+values": {"rotary_value": True}, "deepseek_v4+published": {}, "deepseek_v4+own": {}, "xlnet+untyped": {}, "xlnet+memory": {},
           "gemma4_audio+plain": {"use_clipped_linears": False},
           "gemma4_vision+limits": {"use_clipped_linears": True}} | {f"{name}+cross": {"is_decoder": True, "add_cross_attention": True} for name in (
    "bert-generation", "camembert", "data2vec-text", "electra", "ernie", "roberta", "roberta-prelayernorm", "roc_bert",
    "xlm-roberta", "xlm-roberta-xl", "xmod")}
# With published settings that are refused: they are the column *not with* of the table.
ROTARY = {"position_embeddings_type": "rotary"}
FURTHER |= {"luke+aware": {"use_entity_aware_attention": True}, "idefics+norms": {"qk_layer_norms": True},
            "wav2vec2-conformer+rotary": ROTARY, "wav2vec2-bert+rotary": ROTARY, "seamless_m4t+rotary": ROTARY,
            "xlnet+uni": {"attn_type": "uni"}, "xlnet+clamped": {"clamp_len": 3}, "xlnet+data": {"bi_data": True},
            "deberta+talking": {"talking_head": True}, "molmo2_text+olmo": {"qk_norm_type": "olmo"},
            "ibert+integers": {"quant_mode": True}, "longt5+averages": {"encoder_attention_type": "transient-global"}}
# Names of tensors that a file has instead of those that transformers writes, by regular expressions.
RENAMED = {
    "deepseek_v4+published": {r"attn\.norm\.": "attn.kv_norm."},
    "deepseek_v4+own": {r"attn\.norm\.": "attn.kv_a_layernorm.", r"attn\.q_norm\.": "attn.q_a_layernorm.", "attn_sink": "sinks",
                        r"attn\.wq_a\.": "attn.q_a_proj.", r"attn\.wq_b\.": "attn.q_b_proj.", r"attn\.wo_a\.": "attn.o_a_proj.",
                        r"attn\.wkv\.": "attn.kv_a_proj_with_mqa.", r"attn\.wo_b\.": "attn.o_proj.",
                        r"attn\.compressor\.wkv": "attn.compressor.kv_proj", r"attn\.compressor\.wgate": "attn.compressor.gate_proj",
                        r"attn\.compressor\.ape": "attn.compressor.position_bias", r"attn\.compressor\.norm": "attn.compressor.kv_norm"},
}
# Types with queries that see no key, which give zeros in one library and means in the other, and that nothing sees.
BLIND = {"blt"}
# The buffers of limits on what goes into projections and comes out of them.
LIMITS = ("input_min", "input_max", "output_min", "output_max")
# The side of the images, where the configuration states none.
IMAGES = {**dict.fromkeys(["florence2", "florence_vision", "sam2", "sam2_video", "sam2_vision_model", "sam2_hiera_det_model", "edgetam_video"], 64),
          **dict.fromkeys(["detr", "table-transformer", "conditional_detr", "dab-detr", "deformable_detr"], 96),
          **dict.fromkeys(["rt_detr", "rt_detr_v2", "d_fine", "pp_doclayout_v2", "pp_doclayout_v3", "pp_doclayout_v4",
                           "mask2former", "oneformer"], 64),
          **dict.fromkeys(["grounding-dino", "mm-grounding-dino"], 160)}
# Rows and columns of the patches of a flat image.
GRIDS = {"qwen2_5_vl_vision": (8, 8), "qwen2_5_omni_vision_encoder": (8, 8)}
# Types whose attention takes images `(b, rows, columns, width)`.
ROWS_AND_COLUMNS = {"sam2", "sam2_video", "sam2_vision_model", "sam2_hiera_det_model", "edgetam_video", "sam3_vit_model", "sam3_vision_model", "sam3", "sam3_lite_text", "sam3_tracker",
                    "sam3_tracker_video", "sam3_video"}
# What a call of an attention layer gives beyond its tokens, and the arguments that hold it.
GIVEN = {**dict.fromkeys(["layoutlmv2", "layoutxlm"], {"score_bias": ["rel_pos", "rel_2d_pos"]}),
         "layoutlmv3": {"score_bias": ["position_bias"]},
         "muse_glimmer_assistant": {"mask": ["attention_mask"]},
         **dict.fromkeys(["gemma4_assistant", "gemma4_unified_assistant"],
                         {"positions": ["position_ids"], "shared": ["shared_kv_states"]}),
         "cpmant": {"score_bias": ["position_bias"], "mask": ["attention_mask"]},
         "mlcd_vision_model": {"cos_sin": ["position_embeddings"]}, "mlcd": {"cos_sin": ["position_embeddings"]},
         **dict.fromkeys(["mllama_vision_model", "mllama", "aimv2_text_model", "aimv2", "videoprism_text_model", "videoprism",
                          "paligemma", "colpali", "fun_asr_nano", "fun_asr_nano_encoder"], {"mask": ["attention_mask"]}),
         **dict.fromkeys(["minimax_m3_vl_vision", "minimax_m3_vl", "kimi_k25_vision", "kimi_k25", "lightglue", "sam2_video",
                          "sam3_tracker_video"],
                         {"cos_sin": ["position_embeddings"]}),
         **dict.fromkeys(["muse_glimmer_vision", "muse_glimmer", "muse_spark_vision", "muse_spark"],
                         {"cos_sin": ["position_embeddings"], "mask": ["cu_seqlens"]}),
         **dict.fromkeys([f"minicpm{name}{part}" for name in ("_ocr", "v4_6", "v4_7") for part in ("", "_vision")],
                         {"mask": ["cu_seqlens"]}),
         **dict.fromkeys(["nemotron_asr_streaming_encoder", "nemotron_asr_streaming", "nemotron3_5_asr",
                          "moonshine_streaming_encoder", "moonshine_streaming", "deepseek_ocr2_encoder",
                          "deepseek_ocr2_vision", "deepseek_ocr2", "pi0"], {"mask": ["attention_mask"]}),
         # It adds its Boolean mask to the bias.
         **dict.fromkeys(["phi4_multimodal_audio", "phi4_multimodal"], {"score_bias": ["attention_mask"]}),
         "lilt": {"score_bias": ["layout_scores"]}, "blt": {"mask": ["cross_mask"]},
         "vjepa2": {"positions": ["position_mask"]}, "pegasus_x": {"mask": ["global_mask"]},
         "udop": {"score_bias": ["position_bias"]}, "xlnet": {"token_types": ["token_types"]},
         **dict.fromkeys(["qwen2_5_omni_dit", "qwen2_5_omni_token2wav", "qwen2_5_omni"], {"mask": ["attention_mask"]}),
         "t5gemma2": {"cos_sin": ["position_embeddings"], "mask": ["merged_attention_mask"]},
         **dict.fromkeys(["sam3_detr_decoder", "sam3_lite_text_detr_decoder", "sam3", "sam3_lite_text"], {"score_bias": ["attention_mask"]}),
         **dict.fromkeys(["grounding-dino", "mm-grounding-dino"], {"mask": ["attention_mask"]}),
         **dict.fromkeys(["mask2former", "oneformer"], {"mask": ["attn_mask"]})}
# Types whose pairs of elements that a call's angles turn are neighbors.
NEIGHBORS = {"lightglue", "sam2_video", "sam3_tracker_video"}
# Biases that the model has divided by the root of the size of a head: what they are multiplied by.
DIVIDED = {"layoutlmv3": 8 ** 0.5}
# The class to build, where the first one is not the one that is published.
CLASSES = {"perceiver": "PerceiverForMaskedLM", "nougat": "VisionEncoderDecoderModel", "blip_text_model": "BlipTextModel", "seamless_m4t": "SeamlessM4TModel",
           "seamless_m4t_v2": "SeamlessM4Tv2ForSpeechToText", "layoutlmv2": "LayoutLMv2Model",
           "layoutxlm": "LayoutLMv2Model", "sam2_video": "Sam2VideoModel", "edgetam_video": "EdgeTamVideoModel"}
# Parts whose mask is that of the whole model: alone they have none.
NOT_ALONE = {"blt_global_transformer", "blt_local_encoder", "blt_local_decoder"}
# Models whose attention has the time as its first dimension.
TIME_FIRST = {"fsmt"}
# Models whose features of sound have the time before the frequency.
MELS_LAST = {"speech_to_text", "parakeet_encoder", "parakeet_ctc", "nemotron_asr_streaming_encoder", "wav2vec2-bert", "lasr_encoder", "lasr_ctc",
             "nemotron3_5_transcribe_asr_audio", "seamless_m4t", "seamless_m4t_v2", "granite_speech5_encoder"}
# Parts that hide keys by Booleans, which their eager attention would add as numbers.
BOOLEAN = {"grounding-dino": "text_backbone", "mm-grounding-dino": "text_backbone",
           "qwen2_5_omni_token2wav": "code2wav_dit_model", "qwen2_5_omni": "token2wav.code2wav_dit_model"}
# Models that only compute with Boolean masks.
SDPA = {"qwen2_5_omni_dit", "nemotron_asr_streaming_encoder", "nemotron_asr_streaming", "nemotron3_5_asr"}
# Texts that are called with a padding mask, which makes them causal.
PADDED = {"moonshine_streaming_encoder", "moonshine_streaming", "aimv2_text_model", "videoprism_text_model", "aimv2", "videoprism"}
# Models whose text is compared without an image, in which tokens of the image see one another.
TEXT_ALONE = {"git"}


# The arguments of the first call, where the usual ones leave out what changes attention.
CALLS = {"xlnet": ["input_ids", "token_type_ids"], "xlnet+untyped": ["input_ids"],
         "xlnet+memory": ["input_ids", "token_type_ids", "mems"]}
# The model that is made: a name in FURTHER, or a type.
NAME = None


def ids(n=None):
    return torch.randint(100, VOCAB - 1, (1, n or LENGTH))


def first(cfg, *names, default=None):
    """The first of these attributes of a configuration or its sections that is set."""
    sections = [cfg] + [v for v in vars(cfg).values() if hasattr(v, "to_dict")]
    for name in names:
        for section in sections:
            value = getattr(section, name, None)
            if value is not None:
                return value
    return default


def square(value):
    return (value, value) if isinstance(value, int) else tuple(value)[-2:]


def given(name, model, cfg):
    """A dummy value for an argument of `forward`, or None if its name says nothing."""
    width = first(cfg, "hidden_size", "d_model", "embed_dim", "n_embd", "dim", default=WIDTH)
    width = width[0] if isinstance(width, (list, tuple)) else width
    channels = first(cfg, "num_channels", "in_channels", "in_chans", default=3)
    height, across = square(IMAGES.get(cfg.model_type) or first(cfg, "image_size", "img_size", default=16))
    patch = square(first(cfg, "patch_size", default=4))
    flat = channels * patch[0] * patch[1]
    temporal = first(cfg, "temporal_patch_size", default=1)
    mels = first(cfg, "num_mel_bins", "n_mels", "feature_size", "input_feat_per_channel", default=8)
    kind = str(getattr(cfg, "model_type", ""))
    if name == "input_features" and kind in ("qwen2_5_omni_audio_encoder", "qwen3_omni_moe_audio_encoder"):
        return torch.randn(mels, 16)
    if name == "input_features" and kind.startswith("fun_asr_nano"):
        return torch.randn(2, 16, getattr(cfg, "audio_config", cfg).input_size)
    if name == "input_features" and kind == "gemma4_audio":
        return torch.randn(1, 40, mels)
    if name == "input_features" and kind == "clap_audio_model":
        return torch.randn(1, 1, 512, 32)
    if name == "feature_lens":
        return torch.tensor([16])
    if name == "is_longer":
        return torch.tensor([[False]])
    if name == "target_sizes":
        return torch.tensor([[4, 4]], dtype=torch.int32)
    if name == "merge_sizes":
        return torch.tensor([2])
    if name in ("audio_mel", "audio_mel_mask"):
        return torch.zeros(1, 72, dtype=torch.bool) if name.endswith("mask") else torch.randn(1, 72, cfg.input_feat_size)
    if name == "codebook_idx":
        return 2
    if name == "input_ids" and model.__class__.__name__ == "BarkFineModel":
        return torch.randint(100, VOCAB - 1, (1, LENGTH, cfg.n_codes_total))
    if name == "input_ids" and kind == "kyutai_speech_to_text":
        return torch.randint(10, 100, (1, LENGTH, cfg.num_codebooks + 1))
    if name == "decoder_input_ids" and kind == "dia":
        return torch.randint(10, 100, (1, 9, LENGTH))
    if name == "input_values" and kind.startswith(("pe_audio", "mimi", "pocket_tts_audio")):
        return torch.randn(1, 1, 4000 if kind.startswith("pe_audio") else 400)
    if name == "pixel_values" and kind == "inkling2_vision":
        side = patch[0] * cfg.spatial_merge_size
        return torch.randn(16, side, side, channels)
    if name == "input_features" and kind in ("neucodec", "xcodec2"):
        return torch.randn(1, 20, 160)
    if name == "latents" and kind.startswith(("mimi", "pocket_tts")):
        return torch.randn(1, width, 6)
    if name == "noise_embeds":
        return torch.randn(1, 4, width)
    if name == "context_hidden_states":
        return torch.randn(1, 5, width * len(cfg.target_layer_ids))
    if name == "num_patches":
        return 4
    if name == "chunk_sample_lengths":
        return torch.tensor([16 * cfg.hop_length])
    if name == "input_features" and kind == "dots3_note_audio_encoder":
        return torch.randn(1, mels, 16)
    if name == "input_ids" and kind in ("musicgen_decoder", "musicgen_melody_decoder"):
        return torch.randint(0, 100, (cfg.num_codebooks, LENGTH))
    if name == "input_values" and kind.startswith("omniasr"):
        return torch.randn(1, 1, 400)
    if name == "image_features" and kind == "molmo2_adapter":
        return torch.randn(1, 16, width * len(cfg.vision_feature_layer))
    if name == "pooled_patches_idx":
        return torch.arange(16).reshape(4, 4)
    if name in ("input_features", "input_features_mask") and kind == "qwen3_asr_encoder":
        return torch.ones(1, 200, dtype=torch.long) if name.endswith("mask") else torch.randn(1, mels, 200)
    if name == "patch_embeds":
        return torch.randn(1, width, 4, 4)
    if name == "pixel_values" and kind == "kimi_k25_vision":
        return torch.randn(16, channels, *patch)
    if name == "pixel_values" and kind in ("muse_glimmer_vision", "muse_spark_vision"):
        return torch.randn(16, 2 * flat)
    if name in ("pixel_values", "hidden_states") and kind == "paddleocr_vl_vision":
        return torch.randn(1, 16, channels, *patch)
    if name == "pixel_values" and kind in ("video_llama_3_vision", "molmo2_vision"):
        return torch.randn(16, flat) if kind != "molmo2_vision" else torch.randn(1, 16, flat)
    if name == "pixel_values" and kind in ("minicpm_ocr_vision", "minicpmv4_6_vision", "minicpmv4_7_vision"):
        return torch.randn(1, channels, patch[0], 16 * patch[1])
    if name == "pixel_values" and kind == "gemma4_vision":
        return torch.randn(1, 16, flat)
    if name == "pixel_position_ids":
        return torch.stack([torch.arange(16) % 4, torch.arange(16) // 4], -1)[None]
    if name == "pixel_values" and kind == "tvp":
        return torch.randn(1, 2, channels, 64, 64)
    if name == "past_values" and kind.startswith("timesfm"):
        return torch.randn(1, LENGTH * cfg.patch_length)
    if name == "input_ids" and kind in ("longformer", "led"):
        return ids(8)  # whole windows, so that the model adds no padding
    if name in ("input_ids", "decoder_input_ids", "labels_", "text_input_ids", "qformer_input_ids"):
        return ids(LENGTH if name != "decoder_input_ids" else LENGTH - 1)
    if name == "image" and cfg.model_type in ("layoutlmv2", "layoutxlm"):
        return torch.randn(1, *cfg.image_feature_pool_shape)  # as the stand-in of its backbone has it
    if first(cfg, "model_type") == "seggpt" and name in ("pixel_values", "prompt_pixel_values", "prompt_masks"):
        return torch.randn(1, channels, height // 2, across)  # two images, one below the other
    if name in ("pixel_values", "image", "images", "image_pixel_values", "img"):
        if model.__class__.__name__.lower().startswith("siglip2") or "naflex" in str(getattr(cfg, "model_type", "")):
            return torch.randn(1, 16, flat)
        if getattr(cfg, "model_type", "") == "xclip":  # the frames of a video
            return torch.randn(1, first(cfg, "num_frames"), channels, height, across)
        if getattr(cfg, "model_type", "") == "xclip_vision_model":
            return torch.randn(first(cfg, "num_frames"), channels, height, across)
        if getattr(cfg, "model_type", "") == "mllama_vision_model":  # tiles of an image of a text
            return torch.randn(1, 1, cfg.max_num_tiles, channels, height, across)
        if getattr(cfg, "model_type", "") in ("idefics", "idefics2", "idefics3", "smolvlm"):  # images of a text
            return torch.randn(1, 1, channels, height, across)
        if getattr(cfg, "model_type", "") in ("superglue", "lightglue"):  # two images to compare: the same, without padding
            return torch.randn(1, 1, channels, 64, 64).repeat(1, 2, 1, 1, 1)
        if first(cfg, "model_type") in VIDEO:
            return torch.randn(1, first(cfg, "num_frames", default=2), channels, height, across)
        return torch.randn(1, channels, height, across)
    if name == "input_features_mask" and kind.startswith("fun_asr_nano"):
        return (torch.arange(16) < torch.tensor([[11], [16]])).long()
    if name in ("pixel_attention_mask", "input_features_mask", "feature_attention_mask"):
        return torch.ones(1, 16, dtype=torch.long)
    if name == "flattened_patches":
        place = torch.stack([torch.arange(16) // 4 + 1, torch.arange(16) % 4 + 1], -1)[None]
        return torch.cat([place.float(), torch.randn(1, 16, flat)], -1)
    if name == "pixel_values_videos":
        return torch.randn(1, 2, channels, height, across)
    if name in ("grid_thw", "image_grid_thw"):
        return torch.tensor([[1, *GRIDS.get(cfg.model_type, (4, 4))]])
    if name == "spatial_shapes":
        return torch.tensor([[4, 4]])
    if name in ("input_features", "audio_features") and getattr(cfg, "model_type", "") in MELS_LAST:
        size = 4 * mels if cfg.model_type == "granite_speech5_encoder" else mels
        return torch.randn(1, 72, first(cfg, "feature_projection_input_dim", default=size))
    if name == "past_values":
        steps = first(cfg, "context_length", default=8)
        lags = max(first(cfg, "lags_sequence", default=[0]))
        wide = first(cfg, "num_input_channels")
        return torch.randn(1, steps + lags, wide) if wide else torch.randn(1, steps + lags)
    if name in ("past_time_features", "past_observed_mask", "future_time_features", "future_values"):
        past = first(cfg, "context_length", default=8) + max(first(cfg, "lags_sequence", default=[0]))
        steps = past if name.startswith("past") else first(cfg, "prediction_length")
        if not steps:
            return None
        return torch.ones(1, steps) if name in ("past_observed_mask", "future_values") else torch.zeros(1, steps, 0)
    if name == "visual_feats":
        return torch.randn(1, 4, cfg.visual_feat_dim)
    if name == "visual_pos":
        return torch.randn(1, 4, 4)
    if name in ("input_features", "audio_features"):
        return torch.randn(1, mels, 16)
    if name == "input_values" and hasattr(cfg, "max_length") and hasattr(cfg, "num_mel_bins"):
        return torch.randn(1, cfg.max_length, cfg.num_mel_bins)
    if name == "input_values":
        return torch.randn(1, 4000 if str(getattr(cfg, "model_type", "")).startswith("moonshine") else 72)
    if name in ("inputs_embeds", "hidden_states", "query_embeds", "embeddings", "inputs", "hidden_state"):
        return torch.randn(1, LENGTH, width)
    if name in ("encoder_hidden_states", "encoder_embeds", "image_embeds", "text_embeds", "context"):
        size = first(cfg, "encoder_hidden_size", "cross_attention_hidden_size", default=width)
        return torch.randn(1, LENGTH + 2, size)
    if name == "image_attention_mask":
        return torch.ones(1, LENGTH, 1, dtype=torch.long)
    if name == "attention_mask" and kind.startswith("moonshine_streaming"):
        return torch.ones(1, 4000, dtype=torch.long)
    if name == "attention_mask":
        return torch.ones(1, LENGTH, dtype=torch.long)
    if name == "token_type_ids":
        return torch.tensor([[0, 0, 0, 1, 1, 1, 0, 1, 2]])  # the last is that of XLNet's token for the whole text
    if name == "mems":
        return [torch.randn(5, 1, width) for _ in range(cfg.n_layer)]
    if name in ("bbox",):
        return torch.randint(0, 30, (1, LENGTH, 4)).sort(-1).values
    if name == "aspect_ratio_ids":
        return torch.tensor([[2]])
    if name == "aspect_ratio_mask":
        return torch.tensor([[[1, 1, 0, 0]]])
    if name == "task_inputs":
        return torch.randint(0, 100, (1, cfg.task_seq_len))
    if name == "position_ids":
        return torch.arange(LENGTH)[None]
    return None


MAIN = ("feature_lens", "target_sizes", "grid_thw", "past_values", "past_time_features", "past_observed_mask", "future_time_features", "future_values",
        "visual_feats", "visual_pos",
        "input_ids", "pixel_values", "image", "input_features", "input_values", "decoder_input_ids",
        "spatial_shapes", "input_features_mask", "bbox", "flattened_patches",
        "image_attention_mask")


def attempts(model, cfg):
    """Keyword arguments to try, one after another, until one runs through."""
    signature = inspect.signature(getattr(model, METHODS.get(cfg.model_type, "forward"))).parameters
    named = [n for n, p in signature.items() if p.kind == p.POSITIONAL_OR_KEYWORD]
    required = [n for n in named if signature[n].default is inspect.Parameter.empty]
    if "grid_thw" in required:
        yield from ({n: given(n, model, cfg) if n == "grid_thw" else patches for n in required}
                    for patches in flat_images(cfg))
    if cfg.model_type in PARTS:
        yield PARTS[cfg.model_type]()
    decoder_only = "encoder_hidden_states" in named and "input_ids" in named
    plans = [CALLS[NAME]] if NAME in CALLS and "input_ids" in named else []
    plans += [["input_ids"]] if getattr(cfg, "model_type", None) in TEXT_ALONE and "input_ids" in named else []
    if getattr(cfg, "model_type", None) in PADDED:
        plans.append([n for n in named if n in ("input_ids", "input_values", "decoder_input_ids", "attention_mask", "pixel_values", "pixel_values_videos")])
    plans.append([n for n in named if n in MAIN or n in required])
    plans.append(required)
    for one in ("input_ids", "pixel_values", "input_features", "input_values", "inputs_embeds",
                "hidden_states", "pixel_values_videos"):
        if one in named:
            plans.append(list(dict.fromkeys([*required, one])))
            if "decoder_input_ids" in named:
                plans.append(list(dict.fromkeys([*required, one, "decoder_input_ids"])))
    if decoder_only:
        plans.append(list(dict.fromkeys([*required, "input_ids", "encoder_hidden_states"])))
    if "encoder_hidden_states" in named and not decoder_only:
        plans.append(list(dict.fromkeys([*required, "encoder_hidden_states"])))
    seen = []
    for plan in plans:
        if not plan or plan in seen:
            continue
        seen.append(plan)
        values = {n: given(n, model, cfg) for n in plan}
        if all(v is not None for v in values.values()):
            yield values


def sam3_detr_encoder():
    return dict(vision_features=[torch.randn(1, WIDTH, 4, 4)], text_features=torch.randn(1, 5, WIDTH),
                vision_pos_embeds=[torch.randn(1, WIDTH, 4, 4)], spatial_sizes=[(4, 4)])


def sam3_detr_decoder():
    return dict(vision_features=torch.randn(1, 16, WIDTH), text_features=torch.randn(1, 5, WIDTH),
                vision_pos_encoding=torch.randn(1, 16, WIDTH), spatial_shapes=torch.tensor([[4, 4]]))


def sam3_mask_decoder():
    return dict(decoder_queries=torch.randn(1, 5, WIDTH), encoder_hidden_states=torch.randn(1, 16, WIDTH),
                backbone_features=[torch.randn(1, WIDTH, n, n) for n in (16, 8, 4)],
                prompt_features=torch.randn(1, 5, WIDTH))


def timesfm():
    return dict(past_values=[torch.randn(64)])


def muse_glimmer_assistant():
    seen = torch.arange(9)[None] > torch.arange(4)[:, None]  # a window
    mask = torch.where(seen, 0.0, torch.finfo(torch.float32).min)[None, None]
    return dict(noise_embeds=torch.randn(1, 4, WIDTH), context_hidden_states=torch.randn(1, 5, 5 * WIDTH),
                position_ids=torch.arange(9)[None], attention_mask={"full_attention": mask, "sliding_attention": mask})


def gemma4_assistant():
    pair = lambda heads, d: (torch.randn(1, heads, 9, d), torch.randn(1, heads, 9, d))
    return dict(inputs_embeds=torch.randn(1, 1, 2 * WIDTH), position_ids=torch.tensor([[9]]),
                shared_kv_states={"sliding_attention": pair(2, 8), "full_attention": pair(1, 16)})


def evolla():
    return dict(input_ids=ids(), attention_mask=torch.ones(1, LENGTH, dtype=torch.long), protein_input_ids=ids(7),
                protein_attention_mask=torch.ones(1, 7, dtype=torch.long))


def qwen2_5_omni_dit():
    return dict(hidden_states=torch.randn(1, 16, 80), condition_vector=torch.randn(1, 20, 80),
                speaker_embedding=torch.randn(1, 16, 192), quantized_code=torch.randint(0, 100, (1, 8)),
                time_step=torch.tensor(0.5), apply_cfg=False)


def florence_vision():
    return dict(hidden_states=torch.randn(1, 3, 64, 64))


def wavtokenizer():
    return dict(input_values=torch.randn(1, 1, 2400))


def instructblip_qformer():
    return dict(input_ids=ids(), query_embeds=torch.randn(1, 4, WIDTH), encoder_hidden_states=torch.randn(1, 11, WIDTH))


def phi4_multimodal_audio():
    return dict(hidden_states=torch.randn(1, 64, 80), mask=None)


def mask_decoder(module):
    wide = module.hidden_size
    image = lambda channels, side: torch.randn(1, channels, side, side)
    return dict(image_embeddings=image(wide, 4), image_positional_embeddings=image(wide, 4),
                sparse_prompt_embeddings=torch.randn(1, 1, 2, wide), dense_prompt_embeddings=image(wide, 4),
                multimask_output=True, high_resolution_features=[image(wide // 8, 16), image(wide // 4, 8)])


def acoustic_decoder(module):
    return dict(hidden_states=torch.randn(1, LENGTH, module.fc.in_features))


def memory_attention(module):
    return dict(current_vision_features=torch.randn(16, 1, WIDTH), memory=torch.randn(32, 1, 64),
                memory_posision_embeddings=torch.randn(32, 1, 64))


def recurrent_cell(cell):
    features, width = cell.input_to_hidden.in_features, cell.rnn.hidden_size
    symbols = torch.zeros(2, cell.rnn.input_size - features)
    return dict(prev_hidden=torch.randn(2, width), batch_hidden=torch.randn(2, LENGTH, features), char_onehots=symbols)


# Modules inside of models that run by themselves, and their arguments.
INNER = {"mask_decoder": mask_decoder, "acoustic_decoder": acoustic_decoder, "memory_attention": memory_attention,
         "structure_attention_cell": recurrent_cell}
# What models have in place of `forward`.
METHODS = dict.fromkeys(["chameleon_vqgan", "apertus1p5_vision_tokenizer"], "encode")

# Arguments of parts that take those of other parts.
PARTS = {**dict.fromkeys(["instructblip_qformer", "instructblipvideo_qformer"], instructblip_qformer),
         **dict.fromkeys(["evolla", "EvollaModel"], evolla), "phi4_multimodal_audio": phi4_multimodal_audio,
         "qwen2_5_omni_dit": qwen2_5_omni_dit, "timesfm": timesfm,
         **dict.fromkeys(["gemma4_assistant", "gemma4_unified_assistant"], gemma4_assistant),
         "muse_glimmer_assistant": muse_glimmer_assistant, "florence_vision": florence_vision, "wavtokenizer": wavtokenizer} | {f"{whole}_{part.__name__.removeprefix('sam3_')}": part for whole in ("sam3", "sam3_lite_text")
         for part in (sam3_detr_encoder, sam3_detr_decoder, sam3_mask_decoder)}


def flat_images(cfg):
    """Packed patches for vision towers that take `grid_thw`."""
    channels = first(cfg, "num_channels", "in_channels", "in_chans", default=3)
    patch = square(first(cfg, "patch_size", default=4))
    for temporal in (first(cfg, "temporal_patch_size", default=1), 1):
        rows, columns = GRIDS.get(cfg.model_type, (4, 4))
        yield torch.randn(rows * columns, channels * temporal * patch[0] * patch[1])

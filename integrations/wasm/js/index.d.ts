/** The module: its address or, in Node, its path; its bytes, a response with them, or the compiled module. */
export type ModuleSource =
  URL | string | Request | Response | Promise<Response> | ArrayBuffer | Uint8Array | WebAssembly.Module;

/**
 * Loads the module, once; later calls wait for the first. Without it, `SentenceEncoder.embedded` and `fromBytes` load the
 * file beside this one.
 */
export function init(source?: ModuleSource): Promise<void>;

/** Options of one call: a plain object. An option that does not exist is an error. A whole number is below 2^32. */
export interface EncodeOptions {
  /** The largest number of texts that run together. Default: 32. */
  batchSize?: number;
  /** The largest number of tokens that run together; a longer text runs alone. Default: 16384. */
  maxBatchTokens?: number;
  /** The number of tokens at which a text is cut, special tokens included. Default: `maxSeqLength`. */
  maxLength?: number;
  /** Whether embeddings are divided by their length. Default: false; many models do so by themselves. */
  normalizeEmbeddings?: boolean;
  /** A prompt of its own, put before each text. */
  prompt?: string;
  /** The name of a prompt of the model, put before each text. Default: the model's default prompt. */
  promptName?: string;
  /** What the texts are for, of a model with several routes or tasks. */
  task?: string;
  /** The number of features that are kept, the first ones. Default: all. */
  truncateDim?: number;
}

/** Options of `SentenceEncoder.attention`. An option that does not exist is an error. */
export interface AttentionOptions {
  /**
   * The number of tokens at which the text is cut, special tokens included. Default: `maxSeqLength`. The weights take
   * memory with its square: those of 512 tokens in 12 layers of 12 heads are 151 MB.
   */
  maxLength?: number;
}

/** The attention weights of a text. */
export interface Attention {
  /** The tokens as they are in the text, and the special ones. */
  tokens: string[];
  /** The number of tokens of the whole text: more than `tokens` has if the text was cut. */
  totalTokens: number;
  layers: number;
  heads: number;
  /** `(layers, heads, tokens, tokens)`: the weight of key `k` for query `q` is at `((layer * heads + head) * t + q) * t + k`. */
  weights: Float32Array;
}

/** A text that was found. */
export interface Hit {
  /** Its index among the texts. */
  index: number;
  /** How similar it is to the query, by the model's similarity function: usually the cosine. */
  score: number;
}

/**
 * Sentence embeddings as sentence-transformers computes them. All methods throw an `Error` that says what is wrong. A text may
 * have 16,777,216 bytes.
 */
export class SentenceEncoder {
  private constructor();
  /** The small English model that is part of the module. */
  static embedded(): Promise<SentenceEncoder>;
  /**
   * A model from the files of its folder by their paths: "config.json", "model.safetensors", "tokenizer.json",
   * "modules.json", "1_Pooling/config.json" and so on. The weights are one safetensors file.
   */
  static fromBytes(files: Record<string, Uint8Array> | Map<string, Uint8Array>): Promise<SentenceEncoder>;
  /** The number of features of an embedding. */
  get dimension(): number;
  /** The number of tokens at which texts are cut; infinite for some static embeddings. */
  get maxSeqLength(): number;
  /** The embedding of a text, or of each text. */
  encode(text: string, options?: EncodeOptions): Float32Array;
  encode(texts: string[], options?: EncodeOptions): Float32Array[];
  /** The same for texts that search: with the model's prompt, route and task for queries. */
  encodeQuery(text: string, options?: EncodeOptions): Float32Array;
  encodeQuery(texts: string[], options?: EncodeOptions): Float32Array[];
  /** The same for texts that are searched: with the model's prompt, route and task for documents. */
  encodeDocument(text: string, options?: EncodeOptions): Float32Array;
  encodeDocument(texts: string[], options?: EncodeOptions): Float32Array[];
  /** How similar two embeddings are, by the model's similarity function: usually the cosine. */
  similarity(a: Float32Array, b: Float32Array): number;
  /** How similar each embedding of `a` is to each of `b`: one array per embedding of `a`. */
  similarity(a: Float32Array | Float32Array[], b: Float32Array | Float32Array[]): Float32Array[];
  /** The attention weights of all layers and heads for a text. */
  attention(text: string, options?: AttentionOptions): Attention;
  /** Embeds texts as documents, to be searched any number of times. Queries are truncated and normalized like them. */
  index(texts: string[], options?: EncodeOptions): SearchIndex;
  /** The `k` texts most similar to a query, the best first. Default of `k`: 10. */
  search(query: string, texts: string[] | SearchIndex, k?: number): Hit[];
  /** Frees the memory of the encoder inside the module. Its indexes stay. */
  free(): void;
}

/** Texts that can be searched: a search embeds only the query. Made by `SentenceEncoder.index`. */
export class SearchIndex {
  private constructor();
  /** The encoder that embedded the texts. */
  readonly encoder: SentenceEncoder;
  /** The number of texts. */
  get length(): number;
  /** The `k` texts most similar to a query, the best first. Default of `k`: 10. */
  search(query: string, k?: number): Hit[];
  /** Frees the memory of the index inside the module. */
  free(): void;
}

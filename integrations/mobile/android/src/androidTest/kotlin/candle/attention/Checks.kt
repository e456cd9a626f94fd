package candle.attention

import kotlin.math.abs

/** Checks of the bindings that run on a device and, on a computer, by `tests/run_kotlin`. */
private fun encoder() = SentenceEncoder.embedded(ComputeDevice.CPU, NumberFormat.F32)

private fun expect(condition: Boolean, found: () -> Any?) {
    if (!condition) throw AssertionError("found ${found()}")
}

private inline fun <reified E : Throwable> failure(call: () -> Unit): E {
    try {
        call()
    } catch (error: Throwable) {
        return error as? E ?: throw error
    }
    throw AssertionError("expected ${E::class.java.simpleName}")
}

fun checkEmbeddings() = encoder().use { encoder ->
    expect(encoder.dimension() == 128u) { encoder.dimension() }
    val embeddings = encoder.encode(listOf("A cat sleeps.", "Stocks fell."))
    expect(embeddings.map { it.size } == listOf(128, 128)) { embeddings }
    for (embedding in embeddings) {
        val square = embedding.fold(0f) { sum, x -> sum + x * x }
        expect(abs(square - 1) < 1e-5) { square }
    }
    val options = EncodeOptions(truncateDim = 32u, normalizeEmbeddings = true)
    val short = encoder.encode(listOf("A cat sleeps."), options)
    expect(short[0].size == 32) { short }
    val similarity = encoder.similarity(embeddings, embeddings)
    expect(abs(similarity[1][1] - 1) < 1e-5 && similarity[0][1] < 0.5) { similarity }
}

fun checkSearch() = encoder().use { encoder ->
    SearchIndex(encoder).use { index ->
        expect(index.add(listOf("The stock market fell.", "A cat sleeps on the sofa.")) == 0u) { index.count() }
        expect(index.count() == 2u) { index.count() }
        val hits = index.search("a kitten naps", 1u)
        expect(hits.map { it.index } == listOf(1u)) { hits }
    }
}

fun checkErrors() = encoder().use { encoder ->
    val argument = failure<EncoderException.Argument> { encoder.encode(listOf("A"), EncodeOptions(batchSize = 0u)) }
    expect(argument.message == "config: batch_size = 0 is not allowed: expected at least 1") { argument.message }
    Cancellation().use { cancellation ->
        cancellation.cancel()
        failure<EncoderException.Cancelled> { encoder.encode(listOf("A"), EncodeOptions(), cancellation) }
    }
    val model = failure<EncoderException.Model> {
        SentenceEncoder.fromFiles(mapOf("../config.json" to byteArrayOf()), ComputeDevice.AUTO, NumberFormat.F32)
    }
    expect(model.message == "../config.json: is not the name of a file inside a folder") { model.message }
}

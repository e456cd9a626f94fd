import XCTest

import CandleAttention

final class SentenceEncoderTests: XCTestCase {
    private func encoder() throws -> SentenceEncoder {
        try SentenceEncoder.embedded(device: .cpu, format: .f32)
    }

    func testEmbeddingsAreUnitVectors() throws {
        let encoder = try encoder()
        XCTAssertEqual(encoder.dimension(), 128)
        let embeddings = try encoder.encode(texts: ["A cat sleeps.", "Stocks fell."])
        XCTAssertEqual(embeddings.map(\.count), [128, 128])
        for embedding in embeddings {
            XCTAssertEqual(embedding.reduce(0) { $0 + $1 * $1 }, 1, accuracy: 1e-5)
        }
        let options = EncodeOptions(truncateDim: 32, normalizeEmbeddings: true)
        XCTAssertEqual(try encoder.encode(texts: ["A cat sleeps."], options: options)[0].count, 32)
    }

    func testSearchFindsTheNearestText() throws {
        let index = try SearchIndex(encoder: encoder())
        _ = try index.add(texts: ["The stock market fell.", "A cat sleeps on the sofa."])
        XCTAssertEqual(index.count(), 2)
        XCTAssertEqual(try index.search(query: "a kitten naps", k: 1).map(\.index), [1])
    }

    func testErrorsNameWhatIsWrong() throws {
        XCTAssertThrowsError(try encoder().encode(texts: ["A"], options: EncodeOptions(batchSize: 0))) { error in
            guard case EncoderError.Argument(let message) = error else { return XCTFail("\(error)") }
            XCTAssertEqual(message, "config: batch_size = 0 is not allowed: expected at least 1")
        }
        let cancellation = Cancellation()
        cancellation.cancel()
        XCTAssertThrowsError(try encoder().encode(texts: ["A"], cancellation: cancellation)) { error in
            guard case EncoderError.Cancelled = error else { return XCTFail("\(error)") }
        }
    }
}

// swift-tools-version: 5.9
// The Swift package. `apple/build` makes CandleAttentionFFI.xcframework and the bindings, which are not part of the repository,
// and writes the line of the platforms.
import PackageDescription

let package = Package(
    name: "CandleAttention",
    platforms: [.iOS("13.0"), .macOS("11.0")],
    products: [
        .library(name: "CandleAttention", targets: ["CandleAttention"])
    ],
    targets: [
        .binaryTarget(name: "CandleAttentionFFI", path: "CandleAttentionFFI.xcframework"),
        .target(
            name: "CandleAttention",
            dependencies: ["CandleAttentionFFI"],
            resources: [.copy("PrivacyInfo.xcprivacy")],
            // For a library that was built with the feature `metal`.
            linkerSettings: [
                .linkedFramework("CoreGraphics"),
                .linkedFramework("Foundation"),
                .linkedFramework("Metal"),
            ]
        ),
        .testTarget(name: "CandleAttentionTests", dependencies: ["CandleAttention"]),
    ]
)

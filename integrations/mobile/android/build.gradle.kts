// The Android module: the Kotlin bindings, and the libraries that `android/build-libraries` makes.
plugins {
    id("com.android.library") version "8.11.1"
    id("org.jetbrains.kotlin.android") version "2.2.20"
}

android {
    namespace = "candle.attention"
    compileSdk = 36

    defaultConfig {
        // `android/build-libraries` states it too.
        minSdk = 24
        consumerProguardFiles("consumer-rules.pro")
        testInstrumentationRunner = "androidx.test.runner.AndroidJUnitRunner"
    }
}

kotlin {
    jvmToolchain(17)
}

dependencies {
    // The bindings call the library through it. Earlier versions do not load on Android with pages of 16 KB.
    implementation("net.java.dev.jna:jna:5.17.0@aar")
    androidTestImplementation("androidx.test:runner:1.6.2")
    androidTestImplementation("androidx.test.ext:junit:1.2.1")
}
